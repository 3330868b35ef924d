package relay

import (
	"time"

	"spendhook/api/client"
)

// Record is one record of a source.
type Record struct {
	// Key orders records: one is sent only after all earlier ones with its key are accepted or dead. "": the
	// order does not matter.
	Key     string
	Value   []byte
	Headers map[string]string
	// Time is when the record was made, as its source says; zero: the source does not say.
	Time time.Time
	// From is what else an expression of a mapping may read, such as topic, partition and offset.
	From map[string]any
	// Position is where the record is in its source. Only the source reads it.
	Position int64

	event client.EventInput
	dead  string    // why the record can never be an event; "": it can
	since time.Time // Time, or else when the record was read, also if Time is later
}

// size estimates the bytes that a record takes in memory.
func (r *Record) size() int64 {
	const rest = 512
	size := rest + len(r.Value) + len(r.event.Metadata) + 3*len(r.Key)
	for name, value := range r.Headers {
		size += 2 * (len(name) + len(value)) // the source may keep them, too
	}
	return int64(size)
}

// Outcome is how a record ended.
type Outcome struct {
	*Record

	// Dead says why the record can never be accepted; "": it is accepted.
	Dead string

	duplicate bool // it was accepted before
	line      *line
}
