package dispatcher

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
	"spendhook/subscribers"
)

// payload is an event as a subscriber gets it. Its bytes are the same on every attempt.
type payload struct {
	body        []byte
	contentType string // "" is application/json
}

// payloads encodes one event, once in each format.
type payloads struct {
	event     *events.Stored
	publicURL string // no slash at its end
	made      map[string]payload
}

// in encodes the event in one of the formats of subscribers.
func (p *payloads) in(format string) (payload, error) {
	if format == "" || format == subscribers.FormatStandard {
		return payload{body: p.event.Body}, nil
	}
	if made, ok := p.made[format]; ok {
		return made, nil
	}
	var record any
	out := payload{}
	switch format {
	case subscribers.FormatThin:
		record = p.thin()
	case subscribers.FormatCloudEvents:
		record, out.contentType = p.cloudEvent(), "application/cloudevents+json"
	default:
		return payload{}, fmt.Errorf("format %q is not known", format)
	}
	var err error
	if out.body, err = json.Marshal(record); err != nil {
		return payload{}, fmt.Errorf("encode event %s as %s: %w", p.event.Ref(), format, err)
	}
	if p.made == nil {
		p.made = make(map[string]payload, 1)
	}
	p.made[format] = out
	return out, nil
}

const timeFormat = "2006-01-02T15:04:05.000Z"

type thinEvent struct {
	ID          string `json:"id"`
	CompanyUUID string `json:"companyUuid"`
	Event       string `json:"event"`
	Timestamp   string `json:"timestamp"`
	URL         string `json:"url"`
}

func (p *payloads) thin() thinEvent {
	e := p.event
	return thinEvent{
		ID: e.ID, CompanyUUID: e.CompanyUUID.String(), Event: e.Type, Timestamp: utc(e.Timestamp),
		URL: p.publicURL + "/api/v1/events/" + e.ID,
	}
}

// cloudEvent is in the structured mode of CloudEvents 1.0.2, with its sequence
// extension. Extension attributes have lower-case names.
type cloudEvent struct {
	SpecVersion     string         `json:"specversion"`
	ID              string         `json:"id"`
	Source          string         `json:"source"`
	Type            string         `json:"type"`
	Subject         string         `json:"subject"`
	Time            string         `json:"time"`
	Sequence        string         `json:"sequence,omitempty"`
	ErrorCode       string         `json:"errorcode,omitempty"`
	ErrorMessage    string         `json:"errormessage,omitempty"`
	DataContentType string         `json:"datacontenttype"`
	Data            jsontext.Value `json:"data"`
}

func (p *payloads) cloudEvent() cloudEvent {
	e := p.event
	out := cloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: p.publicURL, Type: e.Type, Subject: e.CompanyUUID.String(), Time: utc(e.Timestamp),
		ErrorCode: e.ErrorCode, ErrorMessage: e.ErrorMessage, DataContentType: "application/json", Data: e.Metadata,
	}
	if out.Source == "" {
		out.Source = "/" // it must not be empty
	}
	if len(out.Data) == 0 {
		out.Data = jsontext.Value("{}")
	}
	if e.Sequence > 0 {
		out.Sequence = fmt.Sprintf("%019d", e.Sequence) // texts compare as the numbers do
	}
	return out
}

func utc(t time.Time) string { return t.UTC().Format(timeFormat) }

func (d *Dispatcher) payloadsOf(e *events.Stored) *payloads {
	return &payloads{event: e, publicURL: strings.TrimSuffix(d.opts.PublicURL, "/")}
}
