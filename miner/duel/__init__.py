"""Today's tournament: two players, six games, tool calls, notes; one turn is one fresh chat."""
