"""How the job was of late: loads, the headline, an hour of history, profiles and logs. Watches; decides nothing."""
