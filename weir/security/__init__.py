"""Who a process is, and how it proves that to others: certificates, or a secret that one user's processes share."""
