"""``python -m weir``: the console command ``weir``."""

from weir.console.command_line import app

app(prog_name="weir")
