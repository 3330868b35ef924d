package main

import (
	"context"
	"fmt"
)

// burst sends all events of a burst at once, to ten subscribers on one host, over HTTP and over HTTPS.
func burst(ctx context.Context, b *bench) error {
	var list []shape
	for _, scheme := range []string{"http", "https"} {
		for _, n := range []int{6_000, 20_000} {
			list = append(list, shape{
				name: fmt.Sprintf("burst-%s-%d", scheme, n), companies: 1, fanOut: sameHostFanOut, batch: 100, goal: 0.60,
				count: int64(b.scaled(n, 200)), bareHosts: sameHostFanOut, receiver: receiverOptions{sameHost: true, tls: scheme == "https"},
			})
		}
	}
	return runShapes(ctx, b, list)
}
