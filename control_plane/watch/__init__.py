"""How the job was of late: loads, the headline and an hour of history. Watches; decides nothing."""
