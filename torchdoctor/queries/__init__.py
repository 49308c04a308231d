"""Questions that checks, fixes and reports ask of a `Recording`. Pure: no file, no clock.

In: a `Recording`.
Out: shares, counts, places, data sheets.
May import: schema.
"""
