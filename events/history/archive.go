package history

import (
	"context"

	"github.com/google/uuid"

	"spendhook/events"
)

// Archive is the history in SQL: settled events that Redis may have forgotten. It is safe for concurrent use. Its errors
// wrap events.ErrUnavailable when the database does not answer.
type Archive interface {
	// Index reads up to n places of the archived index after the given one, in the order of ReadIndex: by time and then
	// by the bytes of the id. Fewer than n means that there are no more.
	Index(ctx context.Context, sp Span, after Place, n int) ([]Place, error)
	// Search reads up to n places of the archived index of a company whose events have the text of the span, newest first.
	// next is the place to continue after, also when it found fewer or none in its time; it has no ID at the end.
	Search(ctx context.Context, sp Span, after Place, n int) (found []Place, next Place, err error)
	// Get reads events with their deliveries, in the order of refs, some hundred at most; nil for those that are not in
	// the history, or erased. Of several events with one id it reads the one that was accepted last.
	Get(ctx context.Context, refs []events.Ref) ([]*Archived, error)
	// Erase removes events with these refs for good, whatever is written of them later. A Value may have the header
	// of an event that is not written yet.
	Erase(ctx context.Context, list []Archived) error
	// Companies lists up to n companies with archived events that come after a company, by partition and then by
	// UUID, in the order of the function Companies. It begins with the first one after uuid.Nil.
	Companies(ctx context.Context, after uuid.UUID, n int) ([]uuid.UUID, error)
}

// Archived is a settled event as it was in Redis.
type Archived struct {
	Ref        events.Ref
	Place      float64 // its score in the index of its company; 0: unknown, since it was restored
	Value      string  // the value at its key, without the records of deliveries
	Deliveries []ArchivedDelivery
}

// ArchivedDelivery is a delivery of an Archived event.
type ArchivedDelivery struct {
	Subscriber uuid.UUID
	Record     string  // as delivery.Record.Encode wrote it
	Created    int64   // its score in the index of its subscriber, unix ms
	Died       float64 // its score in the index of dead letters; 0: it is not dead
}
