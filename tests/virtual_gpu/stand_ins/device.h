// What the stand-in libraries share: the devices' memory, this process's view of them, their clock.
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_DEVICES = 16, SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, UUID_BYTES = 16, UUID_TEXT = 48, FIRST_BUS = 4 };

typedef struct {
  char name[128];
  int count, major, minor, multiprocessors;
  size_t total, nvml_total, context; // bytes: as CUDA gives it, as NVML does, of one process's context
  double flops, bandwidth;           // per second: what the clock counts with
} Kind;

// state.c
const Kind *kind(void);
int visible_count(void);       // devices that CUDA_VISIBLE_DEVICES shows
int physical(int visible);     // NVML's number of a visible device
void device_uuid(int device, unsigned char uuid[UUID_BYTES]);
void uuid_text(int device, char text[UUID_TEXT]); // as NVML and CUDA_VISIBLE_DEVICES write it
void begin_context(int device); // this process holds a context on it from now on
int has_context(int device);
int take_bytes(int device, size_t bytes); // OUT_OF_MEMORY where all processes together would hold too much
void give_bytes(int device, size_t bytes);
size_t held_bytes(int device);
typedef struct { int pid; size_t bytes; } Holder;
int holders(int device, Holder *found, int most);

// memory.c
extern __thread int current_device, last_error;
int is_on_device(const void *p);
int copy_values(void *to, const void *from, size_t bytes);
#define MOST_COPIED ((size_t)4 << 20) // larger copies are left out: nobody reads them

// clock.c: the device's time, advanced by counted work
void count_launch(double bytes);
void count_flops(double flops);
uint64_t device_time(void);             // ns at which what was launched so far is done
void wait_until(uint64_t nanoseconds);
void *new_token(void);

static inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
