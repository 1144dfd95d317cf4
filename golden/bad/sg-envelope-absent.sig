{
 "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
 "verificationMaterial": {
  "publicKey": {
   "hint": "abababababababababababababababababababababababababababababababab"
  },
  "tlogEntries": []
 }
}
