// go_server THREADS REQUESTS: goroutines over the C heap, as bindings of C libraries use it: each
// request's strings and buffers are C.malloc's, handed on to another goroutine and freed there, on
// whichever thread that runs.
package main

/*
#include <stdlib.h>
#include <string.h>

// A C library's parser: pieces that live until they are dropped.
struct pieces { char** words; size_t count; };
static struct pieces* parse(const char* text) {
  struct pieces* made = malloc(sizeof *made);
  made->count = 0;
  made->words = malloc(32 * sizeof *made->words);
  char* copy = strdup(text);
  char* rest = copy;
  for (char* word; made->count < 32 && (word = strtok_r(rest, " ", &rest)) != NULL;)
    made->words[made->count++] = strdup(word);
  free(copy);
  return made;
}
static size_t drop(struct pieces* made) {
  size_t count = made->count;
  for (size_t i = 0; i < count; ++i) free(made->words[i]);
  free(made->words);
  free(made);
  return count;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go_server THREADS REQUESTS")
		os.Exit(2)
	}
	threads, _ := strconv.Atoi(os.Args[1])
	count, _ := strconv.Atoi(os.Args[2])
	requests := make(chan int, 256)
	parsed := make(chan *C.struct_pieces, 256)
	var words int64
	var parsers, droppers sync.WaitGroup
	for i := 0; i < threads/2; i++ {
		parsers.Add(1)
		droppers.Add(1)
		go func() {
			runtime.LockOSThread()
			defer parsers.Done()
			for number := range requests {
				text := C.CString(fmt.Sprintf("a request of %d words number %d that a library takes apart", number%7, number))
				parsed <- C.parse(text)
				C.free(unsafe.Pointer(text))
			}
		}()
		go func() {
			runtime.LockOSThread()
			defer droppers.Done()
			for pieces := range parsed {
				atomic.AddInt64(&words, int64(C.drop(pieces)))
			}
		}()
	}
	for number := 0; number < count; number++ {
		requests <- number
	}
	close(requests)
	parsers.Wait()
	close(parsed)
	droppers.Wait()
	if words != int64(count)*12 {
		fmt.Fprintln(os.Stderr, words, "words")
		os.Exit(1)
	}
}
