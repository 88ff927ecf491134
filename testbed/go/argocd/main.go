// Command redis is what Argo CD keeps its caches in: the server that it starts for itself where there is no other.
//
//	redis 127.0.0.1:6379
//
// It keeps everything in memory until it is ended.
package main

import (
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// The server has no clock of its own: so often, what expires comes nearer to it.
const tick = time.Second

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: redis ADDRESS | --version")
	}
	if os.Args[1] == "--version" {
		fmt.Println(version())
		return
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(os.Args[1]); err != nil {
		log.Fatal(err)
	}
	for range time.Tick(tick) {
		server.FastForward(tick)
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/alicebob/miniredis/v2" {
			return module.Version
		}
	}
	return "unknown"
}
