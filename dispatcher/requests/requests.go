// Package requests prepares what is sent to subscribers: events in their formats, with
// the URL, the headers and the signing keys of each.
package requests

import (
	"log/slog"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/events"
	"spendhook/subscribers"
	"spendhook/subscribers/signingkey"
)

// Options configures a Maker.
type Options struct {
	SigningKeys *signingkey.Store // of v1a signatures; nil: none are added
	PublicURL   string            // of the API, for links and as the source of CloudEvents
	Logger      *slog.Logger
}

// maxTargets bounds the subscribers whose keys are kept decoded.
const maxTargets = 1 << 14

// Maker makes requests. It holds subscribers ready with what attempts need of them, and
// is safe for concurrent use. Make it with New.
type Maker struct {
	opts  Options
	ready *lru.Cache[*subscribers.Subscriber, *Target]
}

// New returns a Maker.
func New(o Options) *Maker {
	o.PublicURL = strings.TrimSuffix(o.PublicURL, "/")
	ready, _ := lru.New[*subscribers.Subscriber, *Target](maxTargets) // fails without a size only
	return &Maker{opts: o, ready: ready}
}

// Payloads encodes an event as its subscribers get it.
func (m *Maker) Payloads(e *events.Stored) *Payloads {
	return &Payloads{event: e, publicURL: m.opts.PublicURL}
}
