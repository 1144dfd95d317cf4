{
 "mediaType": "application/vnd.dev.sigstore.bundle.v0.4+json",
 "verificationMaterial": {
  "publicKey": {
   "hint": "abababababababababababababababababababababababababababababababab"
  },
  "tlogEntries": []
 },
 "dsseEnvelope": {
  "payload": "eyJfdHlwZSI6ICJodHRwczovL2luLXRvdG8uaW8vU3RhdGVtZW50L3YxIiwgInN1YmplY3QiOiBbeyJuYW1lIjogIm91dDQwIiwgImRpZ2VzdCI6IHsic2hhMjU2IjogIjUxODljNzdkMjlmZTVkNTQ2YTA0NWVjNDY5ODY4NTI3ODVmZWE1YzEzYWM3ZGE5YzExNWZmNWZiNmVkZjgxN2MifX1dLCAicHJlZGljYXRlVHlwZSI6ICJodHRwczovL21vZGVsX3NpZ25pbmcvc2lnbmF0dXJlL3YxLjAiLCAicHJlZGljYXRlIjogeyJyZXNvdXJjZXMiOiBbeyJuYW1lIjogImNvbmZpZy5qc29uIiwgImRpZ2VzdCI6ICIxMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExIiwgImFsZ29yaXRobSI6ICJzaGEyNTYifSwgeyJuYW1lIjogIm1vZGVsLnNhZmV0ZW5zb3JzIiwgImRpZ2VzdCI6ICIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyIiwgImFsZ29yaXRobSI6ICJzaGEyNTYifV0sICJzZXJpYWxpemF0aW9uIjogeyJtZXRob2QiOiAiZmlsZXMiLCAiaGFzaF90eXBlIjogInNoYTI1NiIsICJhbGxvd19zeW1saW5rcyI6IGZhbHNlLCAiaWdub3JlX3BhdGhzIjogWyIuZ2l0IiwgIm1vZGVsLnNpZyJdfX19",
  "payloadType": "application/vnd.in-toto+json",
  "signatures": [
   {
    "sig": "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==",
    "keyid": ""
   }
  ]
 }
}
