package api

import (
	"context"
	"net/http"

	"spendhook/api/gen"
	"spendhook/events/eventtype"
)

// ListEventTypes is GET /api/v1/event-types.
func (s *server) ListEventTypes(ctx context.Context, _ *request) (reply, error) {
	list, err := s.opts.EventTypes.List(ctx)
	return ok(gen.EventTypes{Content: convertAll(list, shownType)}), err
}

// GetEventType is GET /api/v1/event-types/{name}.
func (s *server) GetEventType(ctx context.Context, _ *request, name gen.EventTypePath) (reply, error) {
	t, err := s.opts.EventTypes.Get(ctx, name)
	return ok(shownType(t)), err
}

// PutEventType is PUT /api/v1/event-types/{name}.
func (s *server) PutEventType(ctx context.Context, _ *request, name gen.EventTypePath, in gen.EventTypeInput) (reply, error) {
	t, added, err := s.opts.EventTypes.Put(ctx, eventtype.Type{
		Name: name, Description: in.Description, Schema: in.Schema, Example: in.Example,
	})
	status := http.StatusOK
	if added {
		status = http.StatusCreated
	}
	return reply{status: status, content: shownType(t)}, err
}

// DeleteEventType is DELETE /api/v1/event-types/{name}.
func (s *server) DeleteEventType(ctx context.Context, _ *request, name gen.EventTypePath) (reply, error) {
	return noContent(), s.opts.EventTypes.Remove(ctx, name)
}

func shownType(t eventtype.Type) gen.EventType {
	return gen.EventType{
		Name: t.Name, Description: t.Description, Schema: t.Schema, Example: t.Example, Fixed: t.Fixed, UpdatedAt: optional(t.UpdatedAt),
	}
}
