package delivery

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"

	"spendhook/dispatcher/workqueue"
	"spendhook/events"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

//go:embed lua/erase.lua
var eraseSource string

var eraseScript = workqueue.Script(events.Lua()+events.StubLua()+lib+eraseSource, true)

// ErrOpen means that an event is not settled: deliveries of it are open, or it is in
// quarantine.
var ErrOpen = errors.New("the event is not settled")

// Erase removes the payload of a settled event and its deliveries, with what receivers
// answered. Its id stays known, with a digest: it is then as if it had been compacted.
// Erasing it again does nothing. events.ErrNotFound, ErrOpen.
func (s *Store) Erase(ctx context.Context, ref events.Ref) error {
	p := partition.Of(ref.Company)
	call := &script.Call{Script: eraseScript, Keys: workqueue.Keys(p), Args: []any{partition.Prefix(p), ref.Company.String(), ref.ID}}
	if err := script.Run(ctx, s.client, nil, call); err != nil {
		return fmt.Errorf("erase event %s: %w", ref, err)
	}
	switch call.Reply() {
	case "ERASED":
		return nil
	case "UNKNOWN":
		return events.ErrNotFound
	}
	return ErrOpen
}
