package cursor_test

import (
	"errors"
	"testing"

	"spendhook/internal/cursor"
)

type place struct {
	Company string `json:"c"`
	Score   int64  `json:"s"`
}

func TestACursorIsGoodForItsListAndFilterAlone(t *testing.T) {
	t.Parallel()
	want := place{"0c8b", -7}
	text := cursor.Encode("events", "PAID", want)
	var got place
	if err := cursor.Decode(text, "events", "PAID", &got); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for name, err := range map[string]error{
		"another list":   cursor.Decode(text, "deliveries", "PAID", &place{}),
		"another filter": cursor.Decode(text, "events", "", &place{}),
		"a changed one":  cursor.Decode(text[:len(text)-1], "events", "PAID", &place{}),
		"no base64":      cursor.Decode("?", "events", "PAID", &place{}),
		"a short one":    cursor.Decode("AAAA", "events", "PAID", &place{}),
	} {
		if !errors.Is(err, cursor.ErrBad) {
			t.Errorf("%s: %v, want ErrBad", name, err)
		}
	}
}

func TestNoCursorIsTheStart(t *testing.T) {
	t.Parallel()
	got := place{Score: 3}
	if err := cursor.Decode("", "events", nil, &got); err != nil || got.Score != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}
