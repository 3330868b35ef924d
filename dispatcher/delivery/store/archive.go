package store

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

var (
	//go:embed lua/archive.lua
	archiveSource string
	//go:embed lua/archived.lua
	archivedSource string
	//go:embed lua/restore.lua
	restoreSource string

	archiveScript  = queues.ReadScript(layout.Lua() + lib + archiveSource)
	archivedScript = queues.Script(layout.Lua()+lib+archivedSource, true)
	restoreScript  = queues.Script(layout.AppendLua()+lib+restoreSource, false)
)

// Bounds of one call of Unarchived for one partition.
const (
	archiveMost  = 200
	archiveBytes = 256 << 10
)

// restoredFor is how long a restored event is kept at least.
const restoredFor = time.Hour

// forHistory is how many ms a settled event waits for the history at most; 0 without a history.
func (s *Store) forHistory() int64 {
	if s.opts.Archive == nil {
		return 0
	}
	return s.opts.Policy.Retention.Milliseconds()
}

// Unarchived is what a partition has for the history.
type Unarchived struct {
	Partition int
	Events    []history.Archived // settled: to be written
	Erased    []history.Archived // to be erased; a Value has the header alone

	waiting int64 // entries of the list
	entries []any // the first of them
}

// Size is how many events and deliveries these are.
func (u *Unarchived) Size() int {
	n := len(u.Events) + len(u.Erased)
	for i := range u.Events {
		n += len(u.Events[i].Deliveries)
	}
	return n
}

// More reports whether the partition has more than this.
func (u *Unarchived) More() bool { return int64(len(u.entries)) < u.waiting }

// Unarchived reads the next settled events that are to be written to the history, a bounded number of each partition.
// With an error, the result leaves out the partitions that could not be read.
func (s *Store) Unarchived(ctx context.Context, partitions []int) ([]Unarchived, error) {
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &script.Call{Script: archiveScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), archiveMost, archiveBytes}}
	}
	err := script.Run(ctx, s.client, calls...)
	if err != nil {
		err = fmt.Errorf("read settled events: %w", err)
	}
	var out []Unarchived
	for i, c := range calls {
		reply, _ := c.Reply().([]any)
		if len(reply) < 2 { // nothing waits, or the call failed
			continue
		}
		u := Unarchived{Partition: partitions[i]}
		u.waiting, _ = reply[0].(int64)
		for _, item := range reply[1:] {
			fields, _ := item.([]any)
			u.add(texts(fields))
		}
		out = append(out, u)
	}
	return out, err
}

func texts(values []any) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i], _ = v.(string)
	}
	return out
}

// add adds a list of archive.lua. What cannot be read is left out: the record is in quarantine, or was live.
func (u *Unarchived) add(f []string) {
	entry := f[0]
	u.entries = append(u.entries, entry)
	if len(entry) < len("00000000S") { // no script writes this
		return
	}
	company, id, _ := strings.Cut(entry[9:], "/")
	owner, err := uuid.Parse(company)
	if err != nil {
		return
	}
	ref := events.Ref{Company: owner, ID: id}
	e := history.Archived{Ref: ref, Value: f[1]}
	if _, err := layout.ParseHead(ref, e.Value); err != nil { // not kept, or damaged
		e.Value = ""
	}
	if entry[8] == 'E' {
		u.Erased = append(u.Erased, e)
		return
	}
	if e.Value == "" {
		return
	}
	e.Place, _ = strconv.ParseFloat(f[2], 64)
	for d := range slices.Chunk(f[3:], 3) {
		rec, err := delivery.Decode(d[1])
		sub, unparsed := uuid.Parse(d[0])
		if err != nil || unparsed != nil {
			continue
		}
		kept := history.ArchivedDelivery{Subscriber: sub, Record: d[1], Created: rec.Created}
		kept.Died, _ = strconv.ParseFloat(d[2], 64)
		if rec.Status == delivery.StatusDead && kept.Died == 0 { // it is in no list any more
			kept.Died = float64(rec.Updated)
		}
		e.Deliveries = append(e.Deliveries, kept)
	}
	u.Events = append(u.Events, e)
}

// Archived notes that the history has what Unarchived returned. The events may be compacted from now on.
func (s *Store) Archived(ctx context.Context, written ...Unarchived) error {
	calls := make([]*script.Call, len(written))
	for i, u := range written {
		calls[i] = &script.Call{
			Script: archivedScript, Keys: queues.Keys(u.Partition), Args: append([]any{partition.Prefix(u.Partition)}, u.entries...),
		}
	}
	if err := script.Run(ctx, s.client, calls...); err != nil {
		return fmt.Errorf("note archived events: %w", err)
	}
	return nil
}

// Restore writes those of the events into Redis that are only in the history, so that their deliveries can be changed.
// It skips events that are nowhere. free is how many bytes of their Redis are free; the error is publish.ErrStorageFull when
// a company would store more than that. Calling it again is safe.
func (s *Store) Restore(ctx context.Context, refs []events.Ref, free int64) error {
	if s.opts.Archive == nil || len(refs) == 0 {
		return nil
	}
	missing, err := s.missing(ctx, refs)
	if err != nil || len(missing) == 0 {
		return err
	}
	for batch := range slices.Chunk(missing, archiveBatch) {
		found, err := s.opts.Archive.Get(ctx, batch)
		if err != nil {
			return err
		}
		var calls []*script.Call
		for _, e := range found {
			if e != nil {
				calls = append(calls, s.restoreCall(e, free))
			}
		}
		if err := script.Run(ctx, s.client, calls...); err != nil {
			return fmt.Errorf("restore events: %w", err)
		}
		if slices.ContainsFunc(calls, func(c *script.Call) bool { return c.Reply() == int64(-1) }) {
			return publish.ErrStorageFull
		}
	}
	return nil
}

func (s *Store) restoreCall(e *history.Archived, free int64) *script.Call {
	p := partition.Of(e.Ref.Company)
	args := []any{
		partition.Prefix(p), e.Ref.Company.String(), e.Ref.ID, e.Value, script.Now(s.clock), s.keepEvent(), restoredFor.Milliseconds(),
		s.opts.Policy.DeadRetention.Milliseconds(), free,
	}
	for _, d := range e.Deliveries {
		var died any = ""
		if d.Died != 0 {
			died = d.Died
		}
		args = append(args, d.Subscriber.String(), d.Record, died)
	}
	return &script.Call{Script: restoreScript, Keys: queues.Keys(p), Args: args}
}

// missing returns the events that Redis has not, or only compacted.
func (s *Store) missing(ctx context.Context, refs []events.Ref) (out []events.Ref, err error) {
	states, err := pipeline.Readable(ctx, s.client, refs, func(pipe redis.Pipeliner, ref events.Ref) *redis.StringCmd {
		return pipe.GetRange(ctx, layout.EventKey(ref), 0, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("%w: read events: %w", events.ErrUnavailable, err)
	}
	for i, state := range states {
		if state.Err() == nil && (state.Val() == "" || state.Val() == string(events.Compacted)) {
			out = append(out, refs[i])
		}
	}
	return out, nil
}

// eraseArchived erases an event that only the history has.
func (s *Store) eraseArchived(ctx context.Context, ref events.Ref) error {
	if s.opts.Archive == nil {
		return events.ErrNotFound
	}
	found, err := s.opts.Archive.Get(ctx, []events.Ref{ref})
	if err != nil {
		return err
	}
	if found[0] == nil {
		return events.ErrNotFound
	}
	return s.opts.Archive.Erase(ctx, []history.Archived{{Ref: ref}})
}
