"""The words of the integration tests of the store that came before ours."""

_EUROPE = """
albania andorra armenia austria azerbaijan belarus belgium bosnia bulgaria croatia cyprus czechia denmark estonia
finland france georgia germany greece hungary iceland ireland italy kazakhstan kosovo latvia liechtenstein
lithuania luxembourg malta moldova monaco montenegro netherlands northmacedonia norway poland portugal romania
russia sanmarino scotland serbia slovakia slovenia spain sweden switzerland turkey ukraine vatican
"""
#: In order.
COUNTRIES = _EUROPE.split()
