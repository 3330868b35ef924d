//go:build browser

package main

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/traffic"
)

// TestScreenshots writes pages to the folder that CONSOLE_SCREENSHOTS names.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("CONSOLE_SCREENSHOTS")
	if dir == "" {
		t.Skip("CONSOLE_SCREENSHOTS names no folder")
	}
	w := newStory(t)
	w.fill()
	w.invent(t)
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.eventually("the charts have something", func() bool {
		b.visit("/console/")
		return b.is(`document.querySelector("figure.chart[data-drawn]")`)
	})
	pages := []struct{ name, path string }{
		{"overview", "/console/"},
		{"subscribers", "/console/subscribers"},
		{"subscriber", "/console/subscribers/" + w.failing},
		{"edit", "/console/subscribers/" + w.failing + "/edit"},
		{"events", "/console/events"},
		{"event", "/console/events/" + developerCompany.String() + "/" + w.event + "?payload=true"},
		{"deliveries", "/console/deliveries"},
		{"dead", "/console/dead"},
		{"delivery", "/console/deliveries/" + w.event + "." + w.failing},
		{"jobs", "/console/jobs"},
		{"audit", "/console/audit"},
		{"event-types", "/console/event-types"},
		{"quarantine", "/console/quarantine"},
	}
	shoot := func(name, path string, width, height int64, scheme string) {
		t.Helper()
		b.run(chromedp.EmulateViewport(width, height))
		_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if status := b.visit(path); status != 200 {
			t.Errorf("%s: %d", path, status)
		}
		picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, name+".png"), paletted(t, picture))
	}
	// Whoever works on the pages wants to see them narrow and wide, too.
	every := os.Getenv("CONSOLE_SCREENSHOTS_ALL") != ""
	for _, p := range pages {
		shoot(p.name+"-light", p.path, 1280, 800, "light")
		shoot(p.name+"-dark", p.path, 1280, 800, "dark")
		if every {
			shoot(p.name+"-narrow", p.path, 360, 780, "light")
			shoot(p.name+"-wide", p.path, 1440, 900, "dark")
		}
	}
}

// invent counts traffic of the last three hours, so that the charts show some.
func (w *story) invent(t *testing.T) {
	t.Helper()
	options, err := redis.ParseURL(w.home.redis)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	failing, well := uuid.MustParse(w.failing), uuid.MustParse(w.well)
	start := time.Now().Add(-178 * time.Minute)
	for minute := range 177 {
		at := start.Add(time.Duration(minute) * time.Minute)
		clock := func() time.Time { return at }
		c := traffic.NewCounter(traffic.Options{Store: traffic.NewStore(client, clock), Now: clock, Pending: func(context.Context) (int64, error) { return 6, nil }})
		events := 12 + int(7*math.Sin(float64(minute)/19)) + minute%4
		c.Accepted(developerCompany, events)
		for i := range events {
			latency := time.Duration(18+3*(i%7)+minute%5) * time.Millisecond
			c.Attempted(traffic.Attempt{Company: developerCompany, Subscriber: well, StatusCode: 204, Success: true, Duration: latency})
			broken := minute > 140 || minute > 60 && minute < 75 && i%3 == 0
			a := traffic.Attempt{Company: developerCompany, Subscriber: failing, StatusCode: 204, Success: !broken, Duration: 3 * latency}
			if broken {
				a.StatusCode, a.Dead = 500, i%4 == 0 && minute > 140
			}
			c.Attempted(a)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		c.Run(ended) // which writes once
	}
}

// paletted makes a picture small: of the 256 colours that it has most of, each pixel
// gets the nearest.
func paletted(t *testing.T, picture []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	counts, bounds := map[color.Color]int{}, full.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[full.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	small := image.NewPaletted(bounds, colours[:min(len(colours), 256)])
	nearest := map[color.Color]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := full.At(x, y)
			index, known := nearest[c]
			if !known {
				index = uint8(small.Palette.Index(c))
				nearest[c] = index
			}
			small.SetColorIndex(x, y, index)
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
