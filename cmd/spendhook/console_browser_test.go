//go:build browser

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/traffic"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
)

// TestConsoleScreenshots writes pages to the folder that CONSOLE_SCREENSHOTS names, or to one that it deletes.
func TestConsoleScreenshots(t *testing.T) {
	dir := cmp.Or(os.Getenv("CONSOLE_SCREENSHOTS"), t.TempDir())
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	w := newStory(t)
	w.fill()
	w.invent(t)
	w.startJobs()
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.eventually("the charts have something", func() bool {
		b.visit("/console/")
		return b.is(`document.querySelector("figure.chart[data-drawn]")`)
	})
	w.shoot(b, dir, []page{
		{"overview", "/console/", nil},
		{"subscribers", "/console/subscribers", nil},
		{"subscriber", "/console/subscribers/" + w.failing, nil},
		{"edit", "/console/subscribers/" + w.failing + "/edit", nil},
		{"new-subscriber", "/console/subscribers/new", nil},
		{"events", "/console/events", nil},
		{"new-event", "/console/events/new?event=PAYMENT_PAID", nil},
		{"event", "/console/events/" + developerCompany.String() + "/" + w.event + "?payload=true", nil},
		{"deliveries", "/console/deliveries", nil},
		{"dead", "/console/dead", nil},
		{"delivery", "/console/deliveries/" + w.event + "." + w.failing, nil},
		{"tail", "/console/tail", func() { w.showTail(b) }},
		{"jobs", "/console/jobs", nil},
		{"audit", "/console/audit", nil},
		{"event-types", "/console/event-types", nil},
		{"quarantine", "/console/quarantine", nil},
	})
	for id, name := range map[string]string{developerCompany.String(): "Nordwind GmbH", uuid.NewString(): "Acme Inc.", uuid.NewString(): "Bolt K.K."} {
		named := command(t, "", "company", "name", id, name, "--url", w.daemon.api, "--token-file", secretFile(t, w.mint("")), "--yes")
		named.want(t, exitOK, name, "")
	}
	w.enterAll(b)
	w.shoot(b, dir, []page{{"overview-all", "/console/", nil}, {"companies", "/console/companies", nil}, {"access-all", "/console/access", nil}, {"system", "/console/system", nil}, {"event-types-all", "/console/event-types?name=CARD_CREATED", nil}})
}

// startJobs counts the dead letters of the failing subscriber, and recovers what the other one missed.
func (w *story) startJobs() {
	w.t.Helper()
	for path, body := range map[string]string{
		"/api/v1/deliveries/retry":                   `{"subscriberUuid":"` + w.failing + `","dryRun":true}`,
		"/api/v1/subscribers/" + w.well + "/recover": `{"since":"2026-01-01T00:00:00Z"}`,
	} {
		if status, _, text := w.daemon.do(w.t, "POST", path, body); status/100 != 2 {
			w.t.Fatalf("%s: %d %s", path, status, text)
		}
	}
	eventually(w.t, browserPatience, "the jobs have completed", func() bool {
		_, _, text := w.daemon.do(w.t, "GET", "/api/v1/jobs", "")
		return strings.Count(text, `"status":"COMPLETED"`) == 2
	})
}

// page is a page to take screenshots of, as soon as ready returns.
type page struct {
	name, path string
	ready      func()
}

// showTail sends events while the page of the live tail is open.
func (w *story) showTail(b *browser) {
	b.t.Helper()
	b.says("Live")
	b.eventually("the tail is full", func() bool {
		w.tailed++
		kind := []string{"PAYMENT_PAID", "CARD_CREATION_REQUEST_CREATED", "CARD_CREATION_REQUEST_ERROR"}[w.tailed%3]
		w.emit(fmt.Sprintf("evt_2026_%04d", 2100+w.tailed), kind, nil)
		for range 10 {
			waitABit(b.t)
		}
		return b.is(`document.querySelectorAll("#tail tbody tr").length > 14`)
	})
}

// shoot takes screenshots of the pages in light and dark, and in a narrow and a wide window.
func (w *story) shoot(b *browser, dir string, pages []page) {
	b.t.Helper()
	shoot := func(p page, suffix string, width, height int64, scheme string) {
		b.t.Helper()
		b.run(chromedp.EmulateViewport(width, height))
		b.prefers(scheme)
		if status := b.visit(p.path); status != 200 {
			b.t.Errorf("%s: %d", p.path, status)
		}
		if p.ready != nil {
			p.ready()
		}
		picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			b.t.Fatal(err)
		}
		writeFile(b.t, filepath.Join(dir, p.name+suffix+".png"), paletted(b.t, picture))
	}
	every := os.Getenv("CONSOLE_SCREENSHOTS_ALL") != ""
	for _, p := range pages {
		shoot(p, "-light", 1280, 800, "light")
		shoot(p, "-dark", 1280, 800, "dark")
		if every {
			shoot(p, "-narrow", 360, 780, "light")
			shoot(p, "-wide", 1440, 900, "dark")
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
		c := traffic.NewCounter(traffic.NewStore(client, clock), func(context.Context) (int64, error) { return 6, nil })
		events := 12 + int(7*math.Sin(float64(minute)/19)) + minute%4
		c.Accepted(developerCompany, events)
		paused := minute >= 95 && minute < 110
		for i := range events {
			latency := time.Duration(18+3*(i%7)+minute%5) * time.Millisecond
			c.Attempted(traffic.Attempt{Company: developerCompany, Subscriber: well, StatusCode: 204, Success: true, Duration: latency})
			if paused {
				continue
			}
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
	broken := quarantine.Entry{Company: developerCompany, EventID: "evt_2026_1839", Subscriber: &failing}
	key, now := quarantine.Key(partition.Of(developerCompany)), float64(time.Now().UnixMilli())
	if err := client.ZAdd(t.Context(), key, redis.Z{Score: now, Member: broken.Member()}).Err(); err != nil {
		t.Fatal(err)
	}
	changes := queues.ChangesKey(developerCompany, failing)
	if err := client.Del(t.Context(), changes).Err(); err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct { // the latest first
		minute int
		what   string
	}{{141, "failing"}, {110, "resumed"}, {95, "paused"}} {
		at := start.Add(time.Duration(change.minute) * time.Minute).UnixMilli()
		if err := client.RPush(t.Context(), changes, fmt.Sprintf("%d %s", at, change.what)).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// paletted reduces a picture to its 256 most frequent colours. Each pixel gets the nearest
// one.
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
