"""`--plot`: the rows of a task as figures. data: what is drawn; draw: by matplotlib."""
