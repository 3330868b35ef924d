package api

import (
	"context"
	"net/http"

	"spendhook/api/gen"
	"spendhook/events/eventtype"
)

// ListEventTypes is GET /api/v1/event-types.
func (s *server) ListEventTypes(w http.ResponseWriter, r *http.Request) {
	s.do(w, r, func(ctx context.Context, _ *caller) (reply, error) {
		list, err := s.opts.EventTypes.List(ctx)
		return ok(gen.EventTypes{Content: convertAll(list, shownType)}), err
	})
}

// GetEventType is GET /api/v1/event-types/{name}.
func (s *server) GetEventType(w http.ResponseWriter, r *http.Request, name gen.EventTypePath) {
	s.do(w, r, func(ctx context.Context, _ *caller) (reply, error) {
		t, err := s.opts.EventTypes.Get(ctx, name)
		return ok(shownType(t)), err
	})
}

// PutEventType is PUT /api/v1/event-types/{name}.
func (s *server) PutEventType(w http.ResponseWriter, r *http.Request, name gen.EventTypePath) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		if err := c.ofPlatform(); err != nil {
			return reply{}, err
		}
		in, err := decode[gen.EventTypeInput](r)
		if err != nil {
			return reply{}, err
		}
		c.auditTarget(nil, "event-type", name)
		t, added, err := s.opts.EventTypes.Put(ctx, eventtype.Type{
			Name: name, Description: in.Description, Schema: in.Schema, Example: in.Example,
		})
		status := http.StatusOK
		if added {
			status = http.StatusCreated
		}
		return reply{status: status, content: shownType(t)}, err
	})
}

// DeleteEventType is DELETE /api/v1/event-types/{name}.
func (s *server) DeleteEventType(w http.ResponseWriter, r *http.Request, name gen.EventTypePath) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		if err := c.ofPlatform(); err != nil {
			return reply{}, err
		}
		c.auditTarget(nil, "event-type", name)
		return noContent(), s.opts.EventTypes.Remove(ctx, name)
	})
}

func shownType(t eventtype.Type) gen.EventType {
	return gen.EventType{
		Name: t.Name, Description: t.Description, Schema: t.Schema, Example: t.Example, Fixed: t.Fixed, UpdatedAt: optional(t.UpdatedAt),
	}
}
