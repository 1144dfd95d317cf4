{
 "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
 "verificationMaterial": {
  "publicKey": {
   "hint": "abababababababababababababababababababababababababababababababab"
  },
  "tlogEntries": []
 },
 "dsseEnvelope": {
  "payload": "eyJfdHlwZSI6ICJodHRwczovL2luLXRvdG8uaW8vU3RhdGVtZW50L3YxIiwgInN1YmplY3QiOiBbeyJuYW1lIjogIm91dDQwIiwgImRpZ2VzdCI6IHsic2hhMjU2IjogIjUxODljNzdkMjlmZTVkNTQ2YTA0NWVjNDY5ODY4NTI3ODVmZWE1YzEzYWM3ZGE5YzExNWZmNWZiNmVkZjgxN2MifX1dLCAicHJlZGljYXRlVHlwZSI6ICJodHRwczovL21vZGVsX3NpZ25pbmcvc2lnbmF0dXJlL3YxLjAiLCAicHJlZGljYXRlIjogeyJyZXNvdXJjZXMiOiBbeyJkaWdlc3QiOiAiMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMSIsICJhbGdvcml0aG0iOiAic2hhMjU2In0sIHsibmFtZSI6ICJtb2RlbC5zYWZldGVuc29ycyIsICJkaWdlc3QiOiAiMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMiIsICJhbGdvcml0aG0iOiAic2hhMjU2In1dLCAic2VyaWFsaXphdGlvbiI6IHsibWV0aG9kIjogImZpbGVzIiwgImhhc2hfdHlwZSI6ICJzaGEyNTYiLCAiYWxsb3dfc3ltbGlua3MiOiBmYWxzZSwgImlnbm9yZV9wYXRocyI6IFsiLmdpdCIsICJtb2RlbC5zaWciXX19fQ==",
  "payloadType": "application/vnd.in-toto+json",
  "signatures": [
   {
    "sig": "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==",
    "keyid": ""
   }
  ]
 }
}
