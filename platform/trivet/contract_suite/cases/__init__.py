"""The cases of the contract suite; each function takes a `Subject` and its name says what has to hold."""
