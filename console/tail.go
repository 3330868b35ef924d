package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/console/session"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/tail"
)

// tailPage is the page of the live tail. Its stream sends the rows.
type tailPage struct {
	Stream string // address of the stream
}

// tail shows attempts as they are recorded.
func (s *server) tail(_ context.Context, v *visit, company *uuid.UUID) error {
	if _, err := v.subscriberFilter(company); err != nil {
		return err
	}
	stream := *v.r.URL
	stream.Path += "/stream"
	v.show("tail", "Live tail", tailPage{stream.RequestURI()})
	return nil
}

const (
	// checkEvery is the interval at which the session of a stream is checked.
	checkEvery = 10 * time.Second
	// writeTimeout is the time-out of a write to a browser.
	writeTimeout = 10 * time.Second

	// streamLife bounds the duration of a stream, so that a replica can be replaced. The
	// browser then opens another stream.
	streamLife = 10 * time.Minute
)

// tailStream sends the rows of the tail as server-sent events, until the session ends.
func (s *server) tailStream(w http.ResponseWriter, r *http.Request) {
	v := &visit{w: w, r: r, server: s}
	viewer, err := s.beginStream(v)
	if err != nil {
		v.fail(err)
		return
	}
	defer viewer.Leave()
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx must not buffer the stream
	out := http.NewResponseController(w)
	send := func(kind string, data any) bool {
		text, err := json.Marshal(data)
		if err != nil {
			return false
		}
		_ = out.SetWriteDeadline(s.opts.Now().Add(writeTimeout)) // instead of the server's time-out
		if _, err = w.Write([]byte("event: " + kind + "\ndata: " + string(text) + "\n\n")); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	if !send("open", struct{}{}) {
		return
	}
	for checked := s.opts.Now(); ctx.Err() == nil; {
		rows, dropped, err := nextRows(ctx, viewer)
		if now := s.opts.Now(); now.Sub(checked) >= checkEvery {
			if checked = now; !s.sessionValid(ctx, r) {
				send("ended", struct{}{})
				return
			}
		}
		kind := "rows"
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			kind, err = "idle", nil
		}
		if err != nil || !send(kind, tailRows{rows, dropped}) {
			return
		}
	}
}

// beginStream checks the session and starts a viewer with the filter of the query.
func (s *server) beginStream(v *visit) (*tail.Viewer, error) {
	ctx, cancel := context.WithTimeout(v.r.Context(), pageTimeout)
	defer cancel()
	if err := s.authorize(ctx, v, func(g *session.Grant) bool { return g.May(readDeliveries) }); err != nil {
		return nil, err
	}
	company, err := v.company()
	if err != nil {
		return nil, err
	}
	keep, err := v.tailFilter(company)
	if err != nil {
		return nil, err
	}
	return s.opts.Tail.Watch(ctx, company, keep)
}

// tailFilter returns the filter of attempts in the query.
func (v *visit) tailFilter(company *uuid.UUID) (func(tail.Entry) bool, error) {
	event, result := v.Query("event"), v.choice("result", "failed", "delivered")
	subscriber, err := v.subscriberFilter(company)
	return func(e tail.Entry) bool {
		failed := e.Status != "DELIVERED"
		return (event == "" || e.EventType == event) && (subscriber == nil || e.Subscriber == *subscriber) &&
			(result == "" || failed == (result == "failed"))
	}, err
}

// sessionValid reports whether the session of a stream is still valid. While Redis is unavailable, it
// returns true.
func (s *server) sessionValid(ctx context.Context, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	check := r.Clone(ctx)
	check.Header.Set("X-Refresh", "1") // this check does not count as a use of the session
	_, _, err := s.findSession(ctx, check)
	return err == nil || unavailable(err)
}

// tailRows is the message to the script of the page.
type tailRows struct {
	Rows    []tailRow `json:"rows"`
	Dropped int       `json:"dropped"`
}

// tailRow is an attempt with the texts that the page shows.
type tailRow struct {
	At         time.Time `json:"at"`
	Company    string    `json:"company"`
	Type       string    `json:"type"`
	Event      string    `json:"event"`
	Subscriber string    `json:"subscriber"`
	Path       string    `json:"path"` // of the delivery's page
	Answer     string    `json:"answer"`
	Took       string    `json:"took"`
	Number     int       `json:"number"`
	Status     string    `json:"status"`
	Tone       string    `json:"tone"`
}

// nextRows returns the next entries. It waits for them for at most checkEvery.
func nextRows(ctx context.Context, viewer *tail.Viewer) (rows []tailRow, dropped int, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkEvery)
	defer cancel()
	entries, dropped, err := viewer.Next(ctx)
	for _, e := range slices.Backward(entries) {
		rows = append(rows, newTailRow(e))
	}
	return rows, dropped, err
}

func newTailRow(e tail.Entry) tailRow {
	status := statusOf(e.Status)
	row := tailRow{
		At: time.UnixMilli(e.At).UTC(), Company: e.Company.String(), Type: e.EventType, Event: e.EventID, Subscriber: e.Name,
		Path: "/console/deliveries/" + e.EventID + "." + e.Subscriber.String(), Took: wholeMillis(e.DurationMs),
		Number: e.Number, Status: status.Text, Tone: status.Tone,
	}
	if e.StatusCode != 0 {
		row.Answer = number(e.StatusCode)
	}
	if e.Error != "" {
		row.Answer += " " + inspect.ErrorText(e.Error)
	}
	return row
}
