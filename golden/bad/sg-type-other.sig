{
 "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
 "verificationMaterial": {
  "publicKey": {
   "hint": "abababababababababababababababababababababababababababababababab"
  },
  "tlogEntries": []
 },
 "dsseEnvelope": {
  "payload": "eyJfdHlwZSI6ICJodHRwczovL2luLXRvdG8uaW8vU3RhdGVtZW50L3YwLjEiLCAic3ViamVjdCI6IFt7Im5hbWUiOiAib3V0NDAiLCAiZGlnZXN0IjogeyJzaGEyNTYiOiAiNTE4OWM3N2QyOWZlNWQ1NDZhMDQ1ZWM0Njk4Njg1Mjc4NWZlYTVjMTNhYzdkYTljMTE1ZmY1ZmI2ZWRmODE3YyJ9fV0sICJwcmVkaWNhdGVUeXBlIjogImh0dHBzOi8vbW9kZWxfc2lnbmluZy9zaWduYXR1cmUvdjEuMCIsICJwcmVkaWNhdGUiOiB7InJlc291cmNlcyI6IFt7Im5hbWUiOiAiY29uZmlnLmpzb24iLCAiZGlnZXN0IjogIjExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTEiLCAiYWxnb3JpdGhtIjogInNoYTI1NiJ9LCB7Im5hbWUiOiAibW9kZWwuc2FmZXRlbnNvcnMiLCAiZGlnZXN0IjogIjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIiLCAiYWxnb3JpdGhtIjogInNoYTI1NiJ9XSwgInNlcmlhbGl6YXRpb24iOiB7Im1ldGhvZCI6ICJmaWxlcyIsICJoYXNoX3R5cGUiOiAic2hhMjU2IiwgImFsbG93X3N5bWxpbmtzIjogZmFsc2UsICJpZ25vcmVfcGF0aHMiOiBbIi5naXQiLCAibW9kZWwuc2lnIl19fX0=",
  "payloadType": "application/vnd.in-toto+json",
  "signatures": [
   {
    "sig": "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==",
    "keyid": ""
   }
  ]
 }
}
