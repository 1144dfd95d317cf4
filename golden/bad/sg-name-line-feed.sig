{
 "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
 "verificationMaterial": {
  "publicKey": {
   "hint": "abababababababababababababababababababababababababababababababab"
  },
  "tlogEntries": []
 },
 "dsseEnvelope": {
  "payload": "eyJfdHlwZSI6ICJodHRwczovL2luLXRvdG8uaW8vU3RhdGVtZW50L3YxIiwgInN1YmplY3QiOiBbeyJuYW1lIjogIm91dDQwIiwgImRpZ2VzdCI6IHsic2hhMjU2IjogIjUxODljNzdkMjlmZTVkNTQ2YTA0NWVjNDY5ODY4NTI3ODVmZWE1YzEzYWM3ZGE5YzExNWZmNWZiNmVkZjgxN2MifX1dLCAicHJlZGljYXRlVHlwZSI6ICJodHRwczovL21vZGVsX3NpZ25pbmcvc2lnbmF0dXJlL3YxLjAiLCAicHJlZGljYXRlIjogeyJyZXNvdXJjZXMiOiBbeyJuYW1lIjogImFcbmIiLCAiZGlnZXN0IjogIjExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTEiLCAiYWxnb3JpdGhtIjogInNoYTI1NiJ9LCB7Im5hbWUiOiAibW9kZWwuc2FmZXRlbnNvcnMiLCAiZGlnZXN0IjogIjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIiLCAiYWxnb3JpdGhtIjogInNoYTI1NiJ9XSwgInNlcmlhbGl6YXRpb24iOiB7Im1ldGhvZCI6ICJmaWxlcyIsICJoYXNoX3R5cGUiOiAic2hhMjU2IiwgImFsbG93X3N5bWxpbmtzIjogZmFsc2UsICJpZ25vcmVfcGF0aHMiOiBbIi5naXQiLCAibW9kZWwuc2lnIl19fX0=",
  "payloadType": "application/vnd.in-toto+json",
  "signatures": [
   {
    "sig": "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==",
    "keyid": ""
   }
  ]
 }
}
