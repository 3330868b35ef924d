package console

import (
	"context"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/traffic"
	"spendhook/subscribers"
)

// chart is a figure with a table. A script draws the chart from the table.
type chart struct {
	Name, Title string
	Unit        string // of the values: "" for a number, or "ms"
	From        int64  // unix s of the first point
	Step        int64  // s between two points
	Count       int    // of points
	Lines       []line
	Rows        []chartRow // points that are not all 0, the newest first
}

// line is a series of a chart.
type line struct{ Label, Tone string }

type chartRow struct {
	At     time.Time
	Values []int64 // of each line; negative: no value
}

// newChart makes a chart of points. values returns the value of each line at a point.
func newChart(name, title, unit string, points []traffic.Point, lines []line, values func(traffic.Point) []int64) chart {
	c := chart{Name: name, Title: title, Unit: unit, Count: len(points), Lines: lines}
	if len(points) < 2 {
		return c
	}
	c.From, c.Step = points[0].At.Unix(), int64(points[1].At.Sub(points[0].At)/time.Second)
	for _, p := range slices.Backward(points) {
		row := chartRow{p.At, values(p)}
		for _, v := range row.Values {
			if v > 0 {
				c.Rows = append(c.Rows, row)
				break
			}
		}
	}
	return c
}

// chartRange is the period that charts show: 3 hours by the minute, or 7 days by the hour.
type chartRange struct {
	Points []traffic.Point
	Long   bool // 7 days by the hour
	Step   string
}

func (v *visit) chartRange(s traffic.Series) chartRange {
	if v.choice("span", "7d") != "" {
		return chartRange{s.Hours, true, "hour"}
	}
	return chartRange{s.Minutes, false, "minute"}
}

func companyCharts(r chartRange) []chart {
	return []chart{
		newChart("flow", "By the "+r.Step, "", r.Points,
			[]line{{"Events accepted", busy}, {"Delivered", good}, {"Attempts failed", warn}, {"Dead", bad}},
			func(p traffic.Point) []int64 { return []int64{p.Accepted, p.Delivered, p.Failed, p.Dead} }),
		newChart("pending", "Events pending", "", r.Points, []line{{"Pending", busy}},
			func(p traffic.Point) []int64 { return []int64{p.Pending} }),
	}
}

func subscriberCharts(r chartRange) []chart {
	return []chart{
		newChart("answers", "Answers by the "+r.Step, "", r.Points,
			[]line{{"Delivered", good}, {"3xx or 4xx", warn}, {"5xx or no HTTP", bad}, {"No answer", quiet}},
			func(p traffic.Point) []int64 { return []int64{p.Delivered, p.Refused, p.Erred, p.Unanswered} }),
		newChart("latency", "Duration of attempts", "ms", r.Points, []line{{"Median", busy}, {"95 % within", warn}},
			func(p traffic.Point) []int64 {
				if p.Attempts() == 0 {
					return []int64{-1, -1}
				}
				return []int64{max(1, p.P50.Milliseconds()), max(1, p.P95.Milliseconds())}
			}),
	}
}

// sparkHeight is the height of a sparkline, in units of its view box.
const sparkHeight = 20

// sparkline draws the attempts of an hour, and the failed attempts.
func sparkline(points []traffic.Point) template.HTML {
	sum := traffic.Sum(points)
	if sum.Attempts() == 0 {
		return `<span class="dim">no attempt</span>`
	}
	most := int64(1)
	for _, p := range points {
		most = max(most, p.Attempts())
	}
	var all, failed strings.Builder
	for i, p := range points {
		bar := func(n int64, to *strings.Builder) {
			if n > 0 {
				height := max(1, sparkHeight*float64(n)/float64(most))
				fmt.Fprintf(to, "M%d %dv-%.1f", i, sparkHeight, height)
			}
		}
		bar(p.Attempts(), &all)
		bar(p.Failed, &failed)
	}
	text := number(sum.Delivered) + " delivered, " + number(sum.Failed) + " failed in the last hour"
	return template.HTML(fmt.Sprintf(`<svg class="spark" viewBox="-0.5 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s"><title>%s</title><path class="all" d="%s"/><path class="failed" d="%s"/></svg>`, //nolint:gosec // numbers alone
		len(points), sparkHeight, text, text, all.String(), failed.String()))
}

// endpointRow is a subscriber with many failures or a high latency.
type endpointRow struct {
	traffic.Ranked

	Of *subscribers.Subscriber // nil if it was deleted
}

// worstEndpoints returns the endpoints with the most failures and the slowest endpoints, of a
// company or of all companies.
func (s *server) worstEndpoints(ctx context.Context, company *uuid.UUID) (failing, slow []endpointRow, err error) {
	mostFailed, slowest, err := s.opts.Traffic.Worst(ctx, company, 5)
	if err != nil {
		return nil, nil, err
	}
	if failing, err = s.endpointRows(ctx, mostFailed); err != nil {
		return nil, nil, err
	}
	slow, err = s.endpointRows(ctx, slowest)
	return failing, slow, err
}

func (s *server) endpointRows(ctx context.Context, of []traffic.Ranked) (rows []endpointRow, err error) {
	subscriberOf := s.subscriberLookup(ctx)
	for _, r := range of {
		sub, err := subscriberOf(r.Company, r.Subscriber)
		if err != nil {
			return nil, err
		}
		rows = append(rows, endpointRow{r, sub})
	}
	return rows, nil
}
