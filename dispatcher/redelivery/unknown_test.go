package redelivery

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/redistest"
)

// A step of this release keeps the fields that a newer release has added to a job.
func TestUnknownFieldsOfAJobStay(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client := redistest.Start(t, redistest.Options{}).Client()
	s := &Service{Options: Options{Client: client, Now: time.Now}}
	company, id := uuid.New(), uuid.New()
	client.HSet(ctx, jobsKey(company), id.String(), `{"uuid":"`+id.String()+`","company":"`+company.String()+`","kind":"RECOVER","pace":{"ms":5}}`)
	j, err := s.Job(ctx, company, id)
	if err != nil {
		t.Fatal(err)
	}
	j.Examined++
	if err := s.save(ctx, &j); err != nil {
		t.Fatal(err)
	}
	text := client.HGet(ctx, jobsKey(company), id.String()).Val()
	if !strings.Contains(text, `"pace":{"ms":5}`) || !strings.Contains(text, `"examined":1`) {
		t.Error(text)
	}
}
