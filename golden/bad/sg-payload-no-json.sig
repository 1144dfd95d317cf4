{
 "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
 "verificationMaterial": {
  "publicKey": {
   "hint": "abababababababababababababababababababababababababababababababab"
  },
  "tlogEntries": []
 },
 "dsseEnvelope": {
  "payload": "aGVsbG8=",
  "payloadType": "application/vnd.in-toto+json",
  "signatures": [
   {
    "sig": "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==",
    "keyid": ""
   }
  ]
 }
}
