package store

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

//go:embed lua/erase.lua
var eraseSource string

var eraseScript = queues.Script(layout.Lua()+layout.StubLua()+lib+eraseSource, true)

// ErrOpen means that an event is not settled: deliveries of it are open, or it is in
// quarantine.
var ErrOpen = errors.New("the event is not settled")

// Erase removes the payload of a settled event and its deliveries, with the receivers'
// answers. The event is then compacted: its id and digest stay. Erasing it again does
// nothing. events.ErrNotFound, ErrOpen.
func (s *Store) Erase(ctx context.Context, ref events.Ref) error {
	call := eraseCall(ref, false)
	if err := script.Run(ctx, s.client, call); err != nil {
		return fmt.Errorf("erase event %s: %w", ref, err)
	}
	switch call.Reply() {
	case "ERASED", "GONE":
		return nil
	case "UNKNOWN":
		return events.ErrNotFound
	}
	return ErrOpen
}

// EraseAll is Erase for some hundred events of one company at most. It returns how many it
// erased and how many are open; unknown and erased events count as neither. With damaged it
// deletes events that cannot be read; without, they count as open. After an error some events
// may be erased.
func (s *Store) EraseAll(ctx context.Context, refs []events.Ref, damaged bool) (erased, open int, err error) {
	calls := make([]*script.Call, len(refs))
	for i, ref := range refs {
		calls[i] = eraseCall(ref, damaged)
	}
	if err := script.Run(ctx, s.client, calls...); err != nil {
		return 0, 0, fmt.Errorf("erase events: %w", err)
	}
	for _, call := range calls {
		switch call.Reply() {
		case "ERASED":
			erased++
		case "OPEN":
			open++
		}
	}
	return erased, open, nil
}

func eraseCall(ref events.Ref, damaged bool) *script.Call {
	p := partition.Of(ref.Company)
	return &script.Call{
		Script: eraseScript, Keys: queues.Keys(p),
		Args: []any{partition.Prefix(p), ref.Company.String(), ref.ID, flag(damaged)},
	}
}
