package terminal

import (
	"io"
	"os"
)

// Open opens a file, or standard input for "-"; size is in bytes, 0 when it is unknown.
func Open(name string, stdin io.Reader) (in io.ReadCloser, size int64, err error) {
	if name == "-" {
		return io.NopCloser(stdin), fileSize(stdin), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	return f, fileSize(f), nil
}

func fileSize(in io.Reader) int64 {
	f, ok := in.(*os.File)
	if !ok {
		return 0
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}
