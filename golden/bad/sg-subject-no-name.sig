{
 "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
 "verificationMaterial": {
  "publicKey": {
   "hint": "abababababababababababababababababababababababababababababababab"
  },
  "tlogEntries": []
 },
 "dsseEnvelope": {
  "payload": "eyJfdHlwZSI6ICJodHRwczovL2luLXRvdG8uaW8vU3RhdGVtZW50L3YxIiwgInN1YmplY3QiOiBbeyJkaWdlc3QiOiB7InNoYTI1NiI6ICI1MTg5Yzc3ZDI5ZmU1ZDU0NmEwNDVlYzQ2OTg2ODUyNzg1ZmVhNWMxM2FjN2RhOWMxMTVmZjVmYjZlZGY4MTdjIn19XSwgInByZWRpY2F0ZVR5cGUiOiAiaHR0cHM6Ly9tb2RlbF9zaWduaW5nL3NpZ25hdHVyZS92MS4wIiwgInByZWRpY2F0ZSI6IHsicmVzb3VyY2VzIjogW3sibmFtZSI6ICJjb25maWcuanNvbiIsICJkaWdlc3QiOiAiMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMSIsICJhbGdvcml0aG0iOiAic2hhMjU2In0sIHsibmFtZSI6ICJtb2RlbC5zYWZldGVuc29ycyIsICJkaWdlc3QiOiAiMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMiIsICJhbGdvcml0aG0iOiAic2hhMjU2In1dLCAic2VyaWFsaXphdGlvbiI6IHsibWV0aG9kIjogImZpbGVzIiwgImhhc2hfdHlwZSI6ICJzaGEyNTYiLCAiYWxsb3dfc3ltbGlua3MiOiBmYWxzZSwgImlnbm9yZV9wYXRocyI6IFsiLmdpdCIsICJtb2RlbC5zaWciXX19fQ==",
  "payloadType": "application/vnd.in-toto+json",
  "signatures": [
   {
    "sig": "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==",
    "keyid": ""
   }
  ]
 }
}
