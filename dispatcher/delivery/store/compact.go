package store

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"time"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

var (
	//go:embed lua/compacted.lua
	compactedLua string
	//go:embed lua/compact.lua
	compactSource string
	//go:embed lua/erase.lua
	eraseSource string

	compactLib    = layout.Lua() + layout.StubLua() + lib + compactedLua
	compactScript = queues.Script(compactLib+compactSource, true)
	eraseScript   = queues.Script(compactLib+eraseSource, true)
)

// Bounds of one call of Compact for one partition.
const (
	compactMost  = 100
	compactBytes = 1 << 20
)

// Compact drops the payload and the deliveries of events that were settled at least
// Policy.KeepDelivered ago, a bounded number per partition. It returns the number of compacted
// events, and the partitions with more that are due.
func (s *Store) Compact(ctx context.Context, now time.Time, partitions []int) (compacted int, more []int, err error) {
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &script.Call{Script: compactScript, Keys: queues.Keys(p), Args: []any{
			partition.Prefix(p), s.at(now), s.opts.Policy.KeepDelivered.Milliseconds(), compactMost, compactBytes, s.keepEvent(), s.forHistory(),
		}}
	}
	if err = script.Run(ctx, s.client, calls...); err != nil {
		err = fmt.Errorf("compact events: %w", err)
	}
	for i, c := range calls {
		counts := c.Numbers()
		if counts == nil { // the call failed
			continue
		}
		compacted += int(counts[0])
		if counts[1] == 1 {
			more = append(more, partitions[i])
		}
	}
	return compacted, more, err
}

// ErrOpen means that an event is not settled: deliveries of it are open, or it is in
// quarantine.
var ErrOpen = errors.New("the event is not settled")

// Erase removes the payload of a settled event and its deliveries, with the receivers'
// answers. The event is then compacted: its id and digest stay. It does nothing for a
// compacted event. With a history, it is removed there, too; what is being written there now
// follows within seconds. The error may be events.ErrNotFound or
// ErrOpen.
func (s *Store) Erase(ctx context.Context, ref events.Ref) error {
	replies, err := s.erase(ctx, "", ref)
	switch {
	case replies["UNKNOWN"] > 0:
		return s.eraseArchived(ctx, ref)
	case replies["OPEN"] > 0:
		return ErrOpen
	case err == nil && s.opts.Archive != nil:
		err = s.opts.Archive.Erase(ctx, []history.Archived{{Ref: ref}})
	}
	return err
}

// EraseAll erases at most some hundred events of one company. It returns how many it erased and
// how many are open; unknown and compacted events count as neither. Events that cannot be read are
// erased with unreadable, else they count as open. After an error some events may be erased.
func (s *Store) EraseAll(ctx context.Context, refs []events.Ref, unreadable bool) (erased, open int, err error) {
	which := ""
	if unreadable {
		which = "unreadable"
	}
	replies, err := s.erase(ctx, which, refs...)
	return replies["ERASED"], replies["OPEN"], err
}

// DropQuarantined removes the payload of a quarantined event: one that cannot be read and has no
// open deliveries, or that is not matched. The event is not pending any more. Calling it again is safe.
func (s *Store) DropQuarantined(ctx context.Context, ref events.Ref) error {
	_, err := s.erase(ctx, "quarantined", ref)
	return err
}

// erase counts the replies of the script.
func (s *Store) erase(ctx context.Context, which string, refs ...events.Ref) (map[string]int, error) {
	calls := make([]*script.Call, len(refs))
	for i, ref := range refs {
		p := partition.Of(ref.Company)
		calls[i] = &script.Call{Script: eraseScript, Keys: queues.Keys(p), Args: []any{
			partition.Prefix(p), ref.Company.String(), ref.ID, script.Now(s.clock), s.keepEvent(), which, s.forHistory(),
		}}
	}
	if err := script.Run(ctx, s.client, calls...); err != nil {
		return nil, fmt.Errorf("erase events: %w", err)
	}
	replies := make(map[string]int)
	for _, call := range calls {
		reply, _ := call.Reply().(string)
		replies[reply]++
	}
	return replies, nil
}
