// Kubernetes' own library for publishing ResourceSlices, as DRA drivers use it: one controller for each node, and how long they take.
//
// On stdin is a JSON list of nodes, each with its UID and what its slices hold. Every controller is started, and has seen that nothing is
// there, before the clock is: on real nodes they have run for long. Then nodes get their slices, so many at once; one controller writes the
// slices of its node one after the other. On stdout is how long that took, and how many slices were created.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

type node struct {
	Name   string
	UID    types.UID
	Slices []resource.ResourceSliceSpec
}

type report struct {
	Seconds float64 `json:"seconds"`
	Creates int64   `json:"creates"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println(version())
		return
	}
	kubeconfig := flag.String("kubeconfig", "", "where the API server is")
	driver := flag.String("driver", "", "name of the DRA driver")
	lanes := flag.Int("lanes", 1, "how many nodes are published at once")
	flag.Parse()
	said, err := publish(*kubeconfig, *driver, *lanes)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		panic(err)
	}
}

func publish(kubeconfig, driver string, lanes int) (*report, error) {
	var nodes []node
	if err := json.NewDecoder(os.Stdin).Decode(&nodes); err != nil {
		return nil, fmt.Errorf("no list of nodes on stdin: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // as fast as the server goes
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	controllers, err := started(client, driver, nodes)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	each(lanes, len(nodes), func(n int) {
		controllers[n].Update(resources(driver, nodes[n]))
		for controllers[n].GetStats().NumCreates < int64(len(nodes[n].Slices)) {
			time.Sleep(time.Millisecond)
		}
	})
	said := &report{Seconds: time.Since(begin).Seconds()}
	for _, controller := range controllers {
		said.Creates += controller.GetStats().NumCreates
		controller.Stop()
	}
	return said, nil
}

func started(client kubernetes.Interface, driver string, nodes []node) ([]*resourceslice.Controller, error) {
	controllers, failed := make([]*resourceslice.Controller, len(nodes)), make([]error, len(nodes))
	each(len(nodes), len(nodes), func(n int) {
		controllers[n], failed[n] = resourceslice.StartController(context.Background(), resourceslice.Options{
			DriverName: driver,
			KubeClient: client,
			Owner:      &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: nodes[n].Name, UID: nodes[n].UID},
		})
	})
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	return controllers, nil
}

func resources(driver string, of node) *resourceslice.DriverResources {
	slices := make([]resourceslice.Slice, len(of.Slices))
	for n, slice := range of.Slices {
		slices[n] = resourceslice.Slice{Devices: slice.Devices, SharedCounters: slice.SharedCounters}
	}
	pool := driver + "/" + of.Name
	return &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: {Generation: 1, Slices: slices}}}
}

// each does something for every number below count, so many at once.
func each(lanes, count int, do func(int)) {
	todo := make(chan int)
	var wait sync.WaitGroup
	for range lanes {
		wait.Go(func() {
			for n := range todo {
				do(n)
			}
		})
	}
	for n := range count {
		todo <- n
	}
	close(todo)
	wait.Wait()
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "k8s.io/dynamic-resource-allocation" {
			return module.Version
		}
	}
	return "unknown"
}
