"""The API with which authors write a job down. Inert: nothing runs here."""
