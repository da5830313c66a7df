"""`trivet generate`: a file of requests answered in this process, by the code that answers them over HTTP."""
