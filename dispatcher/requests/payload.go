package requests

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
	"spendhook/subscribers"
)

const jsonType = "application/json"

// Payload is an event as a subscriber gets it. Its bytes are the same on every attempt.
type Payload struct {
	Body        []byte
	ContentType string
}

// Payloads encodes one event, once in each format. One goroutine uses it.
type Payloads struct {
	event     *events.Stored
	publicURL string // no slash at its end
	made      map[string]Payload
}

// In encodes the event in one of the formats of subscribers.
func (p *Payloads) In(format string) (Payload, error) {
	if format == "" || format == subscribers.FormatStandard {
		return Payload{Body: p.event.Body, ContentType: jsonType}, nil
	}
	if made, ok := p.made[format]; ok {
		return made, nil
	}
	var record any
	out := Payload{ContentType: jsonType}
	switch format {
	case subscribers.FormatThin:
		record = p.thin()
	case subscribers.FormatCloudEvents:
		record, out.ContentType = p.cloudEvent(), "application/cloudevents+json"
	default:
		return Payload{}, fmt.Errorf("format %q is not known", format)
	}
	var err error
	if out.Body, err = json.Marshal(record); err != nil {
		return Payload{}, fmt.Errorf("encode event %s as %s: %w", p.event.Ref(), format, err)
	}
	if p.made == nil {
		p.made = make(map[string]Payload, 1)
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

func (p *Payloads) thin() thinEvent {
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

func (p *Payloads) cloudEvent() cloudEvent {
	e := p.event
	out := cloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: p.publicURL, Type: e.Type, Subject: e.CompanyUUID.String(), Time: utc(e.Timestamp),
		ErrorCode: e.ErrorCode, ErrorMessage: e.ErrorMessage, DataContentType: jsonType, Data: e.Metadata,
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
