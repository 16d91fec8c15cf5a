"""What a person types: arguments in, exit status out."""
