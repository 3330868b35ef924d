package column

import "time"

// FromMillis is the time that a column keeps, nil for none.
func FromMillis(ms *int64) *time.Time {
	if ms == nil {
		return nil
	}
	return new(time.UnixMilli(*ms).UTC())
}
