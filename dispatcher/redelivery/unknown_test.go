package redelivery

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/internal/redistest"
)

// A step of this release keeps the fields that a newer release has added to a job.
func TestUnknownFieldsOfAJobStay(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client := redistest.Start(t, redistest.Options{}).Client()
	s := &Service{Options: Options{Client: client}}
	company, id := uuid.New(), uuid.New()
	client.Set(ctx, jobKey(company, id), `{"uuid":"`+id.String()+`","company":"`+company.String()+`","kind":"RECOVER","pace":{"ms":5}}`, 0)
	j, err := s.Job(ctx, company, id)
	if err != nil {
		t.Fatal(err)
	}
	j.Examined++
	if saved, err := s.save(ctx, &j); !saved || err != nil {
		t.Fatal(saved, err)
	}
	text := client.Get(ctx, jobKey(company, id)).Val()
	if !strings.Contains(text, `"pace":{"ms":5}`) || !strings.Contains(text, `"examined":1`) {
		t.Error(text)
	}
}
