"""Operations by table and kind over the last day: the activity log of the DBLog paper."""
