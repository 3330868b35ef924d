package main

import (
	"context"
	"fmt"
)

// secure returns the shape with a receiver that speaks TLS, and HTTP/1.1 or HTTP/2.
func (s shape) secure(scenario, kind string, http2 bool) shape {
	version := 1
	if http2 {
		version = 2
	}
	s.name = fmt.Sprintf("%s-%shttp%d", scenario, kind, version)
	s.companies, s.batch, s.bareHosts = 1, 1, s.fanOut
	s.receiver.tls, s.receiver.http2 = true, http2
	return s
}

// https runs "one" and "fanout" over TLS.
func https(ctx context.Context, b *bench) error {
	var list []shape
	for _, http2 := range []bool{false, true} {
		list = append(list,
			shape{fanOut: 1, goal: 0.28}.secure("https", "one-", http2),
			shape{fanOut: 10, goal: 0.55}.secure("https", "fanout-", http2))
	}
	return runShapes(ctx, b, list)
}

const (
	sameHostFanOut = 10
	connsOfLimits  = 2 // how often the connections of all in-flight limits may be opened
)

// samehost runs "fanout" with ten subscribers behind one host and port.
func samehost(ctx context.Context, b *bench) error {
	s := shape{fanOut: sameHostFanOut, receiver: receiverOptions{sameHost: true}, connsGoal: connsOfLimits * sameHostFanOut * endpointLimit}
	one, two := s.secure("samehost", "", false), s.secure("samehost", "", true)
	one.goal, two.goal = 0.50, 0.60
	return runShapes(ctx, b, []shape{one, two})
}

func runShapes(ctx context.Context, b *bench, list []shape) error {
	for _, s := range list {
		if err := s.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}
