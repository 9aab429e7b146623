/* How blocks are taken from the bin of a thread without its help (alloc/cache/reclaim.h): one owner with one bin, one
 * taker. Instructions of the fast paths are steps of their own, and the owner's stores wait in a buffer before others
 * see them, in their order (x86). membarrier is the taker's wait for that buffer. spin looks at every interleaving:
 * no block is had by two, and none is lost.
 *
 * NO_* takes one rule away: spin must then find a history. */

#define SLOTS 3
#define BLOCKS 3
#ifndef OPS
#define OPS 5
#endif
#define DEPTH 6

byte slot[SLOTS + 2];   /* slot[0] is the magazine's bottom: always 0; slot[i + 1] is its slot i */
byte top = 1;           /* index of the slot above the last block */
bool is_in_slow_path, is_asked, has_gaps, lock;
byte holder[BLOCKS + 1]; /* of a block: 0 the bin, 1 the program, 2 the taker or the slabs */

/* The owner's stores on their way: to a slot (its index), or to one of the words. */
#define TO_TOP 20
#define TO_SLOW 21
bool owner_is_done, taker_is_done;
byte to[DEPTH], value[DEPTH], waiting;

inline store(where, what) {
  atomic { waiting < DEPTH -> to[waiting] = where; value[waiting] = what; waiting++ }
}
inline drain_one() {
  d_step {
    if
    :: to[0] == TO_TOP -> top = value[0]
    :: to[0] == TO_SLOW -> is_in_slow_path = value[0]
    :: else -> slot[to[0]] = value[0]
    fi;
    i = 0;
    do
    :: i + 1 < waiting -> to[i] = to[i + 1]; value[i] = value[i + 1]; i++
    :: else -> break
    od;
    waiting--
  }
}
/* The owner sees its own stores at once. */
inline load(where, from_memory, result) {
  d_step {
    result = from_memory;
    i = 0;
    do
    :: i < waiting && to[i] == where -> result = value[i]; i++
    :: i < waiting && to[i] != where -> i++
    :: else -> break
    od;
    i = 0
  }
}

proctype drainer() {
  byte i;
end:
  do
  :: atomic { waiting > 0 -> drain_one() }
  od
}

proctype owner() {
  byte i, t, b, ops, from;
  bool is_slow;
  do
  :: ops == OPS -> break
  :: ops < OPS ->
     ops++;
     is_slow = false;
     if
     :: /* pop */
        load(TO_TOP, top, t);
        atomic {
          load(t - 1, slot[t - 1], b);
          if
          :: b != 0 -> assert(holder[b] == 0); holder[b] = 1
          :: else
          fi
        };
        if
        :: b != 0 -> store(TO_TOP, t - 1)
        :: else -> is_slow = true
        fi
     :: /* push of a block that the program has */
        b = 1;
        do
        :: b <= BLOCKS && holder[b] != 1 -> b++
        :: else -> break
        od;
        if
        :: b <= BLOCKS ->
           load(TO_TOP, top, t);
           if
           :: t == SLOTS + 1 -> is_slow = true
           :: else ->
              holder[b] = 0;
              store(t, b);
              store(TO_TOP, t + 1)
           fi
        :: else
        fi
     :: is_slow = true  /* as for another class */
     fi;
     if
     :: is_slow ->
        store(TO_SLOW, 1);
        if
        :: is_asked -> atomic { waiting == 0 && !lock -> skip }  /* a lock's exchange is a barrier */
        :: else
        fi;
        /* What lies above a gap moves down; then the bin gives up all it has. */
        load(TO_TOP, top, t);
        from = t;
        do
        :: load(from - 1, slot[from - 1], b); if :: b == 0 -> break :: else -> from-- fi
        od;
        if
        :: from != 1 && !has_gaps -> assert(false)  /* nothing but a taker leaves gaps */
        :: else
        fi;
        has_gaps = false;
        do
        :: from < t ->
           atomic { load(from, slot[from], b); assert(holder[b] == 0); holder[b] = 2 };
           from++
        :: else -> break
        od;
        store(TO_TOP, 1);
        store(TO_SLOW, 0)
     :: else
     fi
  od;
  waiting == 0;
  owner_is_done = true
}

inline barrier() { waiting == 0 }

proctype taker() {
  byte i, t, s, b, below;
  bool is_ours;
  byte rounds;
  do
  :: rounds == 2 -> break
  :: rounds < 2 ->
     rounds++;
     lock = true;
     is_asked = true;
#ifndef NO_BARRIER_AFTER_ASKING
     barrier();
#endif
     if
     :: !is_in_slow_path ->
        t = top;
#ifdef NO_BLOCK_LEFT
        s = t - 1;  /* and slot[t] is not looked at */
#else
        s = (t > 1 -> t - 2 : 0);
#endif
        if
        :: s >= 1 ->
           b = slot[s];
           if
#ifdef NO_LOOK_ABOVE
           :: b != 0 ->
#else
           :: b != 0 && slot[s + 1] != 0 ->
#endif
#ifdef NO_COMPARISON
              slot[s] = 0; is_ours = true;
#else
              atomic { is_ours = (slot[s] == b); if :: is_ours -> slot[s] = 0 :: else fi };
#endif
              if
              :: is_ours ->
#ifndef NO_BARRIER_AFTER_MARKING
                 barrier();
#endif
#ifndef NO_LOOK_AT_TOP
#ifdef NO_BLOCK_LEFT
                 is_ours = (top >= s + 1);
#else
                 is_ours = (top >= s + 2);
#endif
#endif
#ifndef NO_LOOK_AT_MARK
                 is_ours = (is_ours && slot[s] == 0);
#endif
                 if
                 :: is_ours ->
                    has_gaps = true;
                    assert(holder[b] == 0);
                    holder[b] = 2;
                    below = s - 1;
                    do
                    :: slot[below] != 0 ->
                       assert(holder[slot[below]] == 0);
                       holder[slot[below]] = 2;
                       below--
                    :: else -> break
                    od
                 :: else ->
                    atomic { if :: slot[s] == 0 -> slot[s] = b :: else fi }
                 fi
              :: else
              fi
           :: else
           fi
        :: else
        fi
     :: else
     fi;
     is_asked = false;
     lock = false
  od;
  taker_is_done = true
}

/* In the end each block is somewhere: with the program, taken, or in the bin above any gap. */
proctype looker() {
  byte at, b;
  owner_is_done && taker_is_done;
  b = 1;
  do
  :: b > BLOCKS -> break
  :: else ->
     if
     :: holder[b] == 0 ->
        at = top - 1;
        do
        :: slot[at] == b -> break
        :: slot[at] != b -> assert(slot[at] != 0); at--
        od
     :: else
     fi;
     b++
  od
}

init {
  atomic {
    slot[1] = 1; slot[2] = 3; slot[3] = 2; top = 4;
    run drainer(); run owner(); run taker(); run looker()
  }
}
