"""What a probe's author imports."""
