package egress

import "syscall"

// Control is control, for tests.
func (g *Guard) Control(network, address string, c syscall.RawConn) error {
	return g.control(network, address, c)
}
