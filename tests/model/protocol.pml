/* The protocol of purge, register, invalidate, close, quiesce and notify (docs/design.md, I2, I3, I5, I9;
 * README.md here has it in words). One owned page range, one page of foreign memory, a fabric with a cache
 * and a lock of its own. spin looks at every interleaving; protocol_test.py says of which processes.
 *
 * What is one step in the code (a compare-and-swap, a look under a domain's lock) is atomic here or under
 * `lock`; a call of a registrar is at least two steps. What waits in the code waits here by a guard, so a
 * history that never ends is an invalid end state.
 *
 * Longer than 600 lines, since spin reads one file, and its language has no functions.
 *
 * NO_* takes one rule away, ITEM* undoes one mended fault: spin must then find a history. */

#ifndef DOMAINS
#define DOMAINS 1
#endif
#define RECORDS 2
#define PURGING 100

mtype = { FREE, MAKING, OPEN, CLOSED };       /* of a record; CLOSED ones are in the tree until FREE */
mtype = { UNUSED, WORKS, CLOSING, CHANGING }; /* of a domain */

typedef Record {
  mtype state = FREE;
  byte refs;
  bool reaches;  /* the device reaches the pages */
  byte pages;    /* which: their generation */
  byte serial;   /* of the registration; a record is used again */
  bool is_stale;
  bool is_suspended;
  bool is_awaited;
}
typedef Domain {
  mtype phase = WORKS;
  bool lock;
  bool has_device = true;
  Record at[RECORDS];
}
Domain domain[DOMAINS];

byte word;        /* 0 idle, n registering, PURGING */
byte generation;  /* of the owned pages */
byte serials;
byte live;        /* blocks there */
bool is_out;      /* of reach of allocation */

byte remaining;   /* of the one invalidation: not yet gone, and 1 until its look is over */
bool is_done;
bool gate;        /* closed by a quiesce */
byte builders;

bool fabric_lock;
bool fabric_has;  /* the fabric's own registration of the owned pages */
byte fabric_pages;

bool exit_begun, fabric_gone, purge_under_way;

#define LOCK(d) atomic { !domain[d].lock -> domain[d].lock = true }
#define UNLOCK(d) domain[d].lock = false

/* ---- ends ---- */

/* Calls the registrar, then forgets the record and tells who waits. */
inline drop(d, i) {
  assert(domain[d].has_device);
  domain[d].at[i].reaches = false;
  LOCK(d);
  d_step {
    domain[d].at[i].state = FREE;
    if
    :: domain[d].at[i].is_awaited ->
       domain[d].at[i].is_awaited = false;
       remaining--;
       if :: remaining == 0 -> is_done = true :: else fi
    :: else
    fi
  }
  UNLOCK(d)
}

inline put(d, i) {
  atomic {
    domain[d].at[i].refs--;
    is_last = (domain[d].at[i].state == CLOSED && domain[d].at[i].refs == 0)
  }
  if :: is_last -> drop(d, i) :: else fi
}

/* ---- a get: `got` is a record, or RECORDS ---- */

inline find_open(d) {
  got = 0;
  do
  :: got < RECORDS && domain[d].at[got].state != OPEN -> got++
  :: else -> break
  od
}

inline get(d) {
  /* A hit: the slot, then one compare-and-swap on the record's word. */
#ifdef NO_I5
  atomic { find_open(d) }
  if
  :: got < RECORDS -> domain[d].at[got].refs++ /* of whatever it has become */
  :: else
  fi;
#else
  atomic {
    find_open(d);
    if :: got < RECORDS -> domain[d].at[got].refs++ :: else fi
  }
#endif
  if
  :: got < RECORDS
  :: else ->
     LOCK(d);
     atomic {
       mine = RECORDS;
       find_open(d);
       if
       :: domain[d].phase != WORKS -> got = RECORDS
       :: else ->
          if
          :: got < RECORDS -> domain[d].at[got].refs++
          :: else ->
             mine = 0;
             do
             :: mine < RECORDS && domain[d].at[mine].state != FREE -> mine++
             :: else -> break
             od;
             if
             :: mine < RECORDS ->
                domain[d].at[mine].state = MAKING;
                serials++;
                domain[d].at[mine].serial = serials;
                domain[d].at[mine].refs = 0;
                domain[d].at[mine].is_stale = false;
                domain[d].at[mine].is_suspended = false
             :: else
             fi
          fi
       fi
     }
     UNLOCK(d);
     if
     :: mine < RECORDS -> make(d)
     :: else
     fi
  fi
}

inline give_up(d) {
  LOCK(d);
  d_step {
    domain[d].at[mine].state = FREE;
    if
    :: domain[d].at[mine].is_awaited ->
       domain[d].at[mine].is_awaited = false;
       remaining--;
       if :: remaining == 0 -> is_done = true :: else fi
    :: else
    fi
  }
  UNLOCK(d)
}

inline make(d) {
#ifdef NO_I3_WORDS
  word_is_mine = true;
#else
  atomic {
    if
    :: word == PURGING -> word_is_mine = false
    :: else -> word_is_mine = true; word++
    fi
  }
#endif
  if
  :: !word_is_mine -> give_up(d)
  :: else ->
     /* register_: it pins at some moment. */
     atomic {
       assert(domain[d].has_device);
       domain[d].at[mine].reaches = true;
       domain[d].at[mine].pages = generation
     }
     is_last = false;
     LOCK(d);
     atomic {
       find_open(d);
       if
       :: domain[d].at[mine].is_stale ->
          domain[d].at[mine].state = CLOSED; /* for one use */
          domain[d].at[mine].refs = 1;
          got = mine
       :: else ->
          if
          :: got < RECORDS ->
             domain[d].at[mine].state = CLOSED; /* a duplicate */
             domain[d].at[got].refs++;
             is_last = true
          :: else ->
             domain[d].at[mine].state = OPEN;
             domain[d].at[mine].refs = 1;
             got = mine
          fi
       fi
     }
     UNLOCK(d);
#ifndef NO_I3_WORDS
     word--;
#endif
     if :: is_last -> drop(d, mine) :: else fi
  fi
}

/* The owner of a block, who may put after the free. */
proctype User(byte d) {
  byte got, mine;
  bool is_last, word_is_mine;
  byte rounds = 0;
  do
  :: rounds < ROUNDS ->
     rounds++;
     atomic { !is_out -> live++ }
     get(d);
     if
     :: got < RECORDS ->
        /* I5: right until the put. */
        assert(domain[d].at[got].reaches && domain[d].at[got].pages == generation);
        if
        :: live--; assert(domain[d].at[got].reaches && domain[d].at[got].pages == generation); put(d, got)
        :: put(d, got); live--
        fi
     :: else -> live--
     fi
  :: else -> break
  od
}

/* Has a block beside the range, and a registration wide enough for both. */
proctype Neighbour(byte d) {
  byte got, mine;
  bool is_last, word_is_mine;
  get(d);
  if
  :: got < RECORDS -> assert(domain[d].at[got].reaches); put(d, got)
  :: else
  fi
}

/* Drops what is idle, for room. */
proctype Evictor(byte d) {
  byte i = 0;
  LOCK(d);
  atomic {
    do
    :: i < RECORDS && !(domain[d].at[i].state == OPEN && domain[d].at[i].refs == 0) -> i++
    :: else -> break
    od;
    if :: i < RECORDS -> domain[d].at[i].state = CLOSED :: else fi
  }
  UNLOCK(d);
  if :: i < RECORDS -> drop(d, i) :: else fi
}

/* ---- a purge ---- */

proctype Purger() {
  byte d, i, mine = 0;
  bool is_refused, is_last;
  byte rounds = 0;
  bool closed[RECORDS];
  do
  :: rounds < PURGES && !exit_begun ->
     rounds++;
     purge_under_way = true;
     atomic {
       if
       :: live == 0 -> is_out = true; is_refused = false
       :: else -> is_refused = true
       fi
     }
#ifndef NO_I3_WORDS
     atomic {
       if
       :: !is_refused && word == 0 -> word = PURGING
       :: else -> is_refused = true
       fi
     }
#endif
#ifdef NO_I3_ORDER
     if :: !is_refused -> generation++ :: else fi;
#endif
     d = 0;
     do
     :: d < DOMAINS && !is_refused ->
        LOCK(d);
        atomic {
          i = 0;
          do
          :: i < RECORDS ->
             closed[i] = false;
             if
             :: domain[d].at[i].state == OPEN && domain[d].at[i].refs == 0 ->
                domain[d].at[i].state = CLOSED;
                closed[i] = true
#ifdef NO_I3_WAIT
             :: domain[d].at[i].state == OPEN && domain[d].at[i].refs != 0 -> is_refused = true
#else
             :: (domain[d].at[i].state == OPEN && domain[d].at[i].refs != 0) ||
                domain[d].at[i].state == CLOSED -> is_refused = true
#endif
             :: else
             fi;
             i++
          :: else -> break
          od;
          i = 0;
          do
          :: i < RECORDS && is_refused ->
             if :: closed[i] -> domain[d].at[i].state = OPEN; closed[i] = false :: else fi;
             i++
          :: else -> break
          od
        }
        UNLOCK(d);
        i = 0;
        do
        :: i < RECORDS ->
           if
           :: closed[i] ->
#ifndef ITEM4
              if
              :: exit_begun -> is_refused = true /* left closed, to the program's own threads */
              :: else -> assert(!fabric_gone); drop(d, i)
              fi
#else
              assert(!fabric_gone); drop(d, i)
#endif
           :: else
           fi;
           i++
        :: else -> break
        od;
        d++
     :: else -> break
     od;
#ifdef WITH_FABRIC
     if
     :: !is_refused ->
#ifdef NO_I2
        LOCK(0);
#endif
        /* The notifier: the fabric's callback takes the fabric's lock. */
        atomic { !fabric_lock -> fabric_lock = true }
        fabric_has = false;
        fabric_lock = false;
#ifdef NO_I2
        UNLOCK(0)
#endif
     :: else
     fi;
#endif
     if
     :: !is_refused ->
        d_step {
          /* I3: nothing reaches the pages any more. */
          d = 0;
          do
          :: d < DOMAINS ->
             i = 0;
             do
             :: i < RECORDS -> assert(!domain[d].at[i].reaches); i++
             :: else -> break
             od;
             d++
          :: else -> break
          od;
#ifndef NO_I3_ORDER
          generation++
#endif
        }
     :: else
     fi;
#ifndef NO_I3_WORDS
     if :: is_out && word == PURGING -> word = 0 :: else fi;
#endif
     is_out = false;
     purge_under_way = false
  :: else -> break
  od
}

/* ---- invalidation ---- */

proctype Invalidator() {
  byte d = 0, i;
  bool was[RECORDS];
  bool made_before[DOMAINS];
  bool drops[RECORDS];
  atomic { remaining = 1 }
  do
  :: d < DOMAINS ->
     if
#ifdef ITEM5
     :: domain[d].phase == WORKS || domain[d].phase == CHANGING ->
#else
     :: domain[d].phase != UNUSED ->
#endif
        LOCK(d);
        atomic {
          i = 0;
          do
          :: i < RECORDS ->
             drops[i] = false;
             if
             :: domain[d].at[i].state == MAKING -> domain[d].at[i].is_stale = true
             :: domain[d].at[i].state == OPEN ->
                domain[d].at[i].state = CLOSED;
                drops[i] = domain[d].at[i].refs == 0
             :: domain[d].at[i].state == CLOSED && domain[d].at[i].is_suspended ->
                domain[d].at[i].is_suspended = false;
                domain[d].at[i].refs--;
                drops[i] = domain[d].at[i].refs == 0
             :: else
             fi;
             if
             :: domain[d].at[i].state != FREE -> domain[d].at[i].is_awaited = true; remaining++
             :: else
             fi;
             i++
          :: else -> break
          od
        }
        UNLOCK(d);
        i = 0;
        do
        :: i < RECORDS -> if :: drops[i] -> drop(d, i) :: else fi; i++
        :: else -> break
        od
     :: else
     fi;
     d++
  :: else -> break
  od;
  atomic {
    remaining--;
    if :: remaining == 0 -> is_done = true :: else fi
  }
}

/* What `done` promises: of what was there before the call nothing is. */
proctype Owner() {
  byte i, d;
  byte before[DOMAINS * RECORDS];
  atomic {
    d = 0;
    do
    :: d < DOMAINS ->
       i = 0;
       do
       :: i < RECORDS ->
          before[d * RECORDS + i] = (domain[d].at[i].reaches -> domain[d].at[i].serial : 0);
          i++
       :: else -> break
       od;
       d++
    :: else -> break
    od;
    run Invalidator()
  }
  atomic {
    is_done;
    d = 0;
    do
    :: d < DOMAINS ->
       i = 0;
       do
       :: i < RECORDS ->
          assert(before[d * RECORDS + i] == 0 || !domain[d].at[i].reaches ||
                 domain[d].at[i].serial != before[d * RECORDS + i]);
          i++
       :: else -> break
       od;
       d++
    :: else -> break
    od
  }
}

/* ---- close ---- */

proctype Closer(byte d) {
  byte i;
  bool is_busy = false;
  bool drops[RECORDS];
  atomic {
    if
    :: gate -> is_busy = true
    :: else -> builders++
    fi
  }
  if
  :: !is_busy ->
     LOCK(d);
     atomic {
       i = 0;
       do
       :: i < RECORDS ->
          drops[i] = false;
          if
          :: domain[d].at[i].state == MAKING || domain[d].at[i].refs != 0 -> is_busy = true
          :: else
          fi;
          i++
       :: else -> break
       od;
       i = 0;
       do
       :: i < RECORDS && !is_busy ->
          if
          :: domain[d].at[i].state == OPEN -> domain[d].at[i].state = CLOSED; drops[i] = true
          :: else
          fi;
          i++
       :: else -> break
       od;
       if :: !is_busy -> domain[d].phase = CLOSING :: else fi
     }
     UNLOCK(d);
     if
     :: !is_busy ->
        i = 0;
        do
        :: i < RECORDS -> if :: drops[i] -> drop(d, i) :: else fi; i++
        :: else -> break
        od;
        /* wait_for_drops() */
        domain[d].at[0].state == FREE && domain[d].at[1].state == FREE;
        atomic { domain[d].has_device = false; domain[d].phase = UNUSED }
     :: else
     fi;
     builders--
  :: else
  fi
}

/* ---- quiesce ---- */

#define SETTLED(d, i) (domain[d].at[i].state == FREE || \
    domain[d].at[i].state == CLOSED && domain[d].at[i].is_suspended && domain[d].at[i].refs == 1)

proctype Quiescer() {
  byte i, d = 0;
  bool drops[RECORDS];
  gate = true;
  builders == 0;
  if
  :: domain[d].phase == WORKS ->
     LOCK(d);
     atomic {
       domain[d].phase = CHANGING;
       i = 0;
       do
       :: i < RECORDS ->
          if
          :: domain[d].at[i].state == OPEN ->
             domain[d].at[i].state = CLOSED;
             domain[d].at[i].is_suspended = true;
             domain[d].at[i].refs++
          :: domain[d].at[i].state == MAKING -> domain[d].at[i].is_stale = true
          :: else
          fi;
          i++
       :: else -> break
       od
     }
     UNLOCK(d);
     if
#ifdef ITEM2
     /* Only what is held was looked at, and none waited for drops of others. */
     :: atomic { (domain[d].at[0].state != MAKING && domain[d].at[1].state != MAKING &&
                  (domain[d].at[0].refs == 0 || SETTLED(d, 0)) && (domain[d].at[1].refs == 0 || SETTLED(d, 1))) ->
#else
     :: atomic { SETTLED(d, 0) && SETTLED(d, 1) ->
#endif
          i = 0 }
        LOCK(d);
        atomic {
          do
          :: i < RECORDS ->
             drops[i] = false;
             if
             :: domain[d].at[i].is_suspended && domain[d].at[i].state == CLOSED ->
                domain[d].at[i].is_suspended = false;
                domain[d].at[i].refs--;
                drops[i] = domain[d].at[i].refs == 0
             :: else
             fi;
             i++
          :: else -> break
          od
        }
        UNLOCK(d);
        i = 0;
        do
        :: i < RECORDS -> if :: drops[i] -> drop(d, i) :: else fi; i++
        :: else -> break
        od;
#ifndef ITEM2
        /* wait_for_drops(): an invalidation may have taken some from us. */
        domain[d].at[0].state == FREE && domain[d].at[1].state == FREE;
#endif
        atomic {
          assert(!domain[d].at[0].reaches && !domain[d].at[1].reaches);
          domain[d].has_device = false
        }
        /* The resume. */
        domain[d].has_device = true;
        LOCK(d);
        domain[d].phase = WORKS;
        UNLOCK(d)
     :: true ->
        /* Its time is over. */
        LOCK(d);
        atomic {
          i = 0;
          do
          :: i < RECORDS ->
             if
             :: domain[d].at[i].is_suspended && domain[d].at[i].state == CLOSED ->
                domain[d].at[i].is_suspended = false;
                domain[d].at[i].refs--;
                domain[d].at[i].state = OPEN
             :: else
             fi;
             i++
          :: else -> break
          od;
          domain[d].phase = WORKS
        }
        UNLOCK(d)
     fi
  :: else
  fi;
  gate = false
}

/* ---- a fabric ---- */

/* Asks us for a key under its lock, and broadcasts from a block that it has registered itself. */
proctype Fabric() {
  byte rounds = 0;
  do
  :: rounds < ROUNDS ->
     rounds++;
     atomic { !fabric_lock -> fabric_lock = true }
     /* A miss, of other memory of ours. */
     LOCK(0);
     UNLOCK(0);
     fabric_lock = false;
     atomic { !is_out -> live++ }
     atomic { !fabric_lock -> fabric_lock = true }
     atomic { if :: !fabric_has -> fabric_has = true; fabric_pages = generation :: else fi }
     /* The cached registration, of an earlier round perhaps. */
     assert(fabric_pages == generation);
     fabric_lock = false;
     live--
  :: else -> break
  od
}

/* Foreign memory, with us in the fabric's notification slot. */
byte foreign_generation, foreign_pages;
bool foreign_cached;
proctype ForeignUser() {
  byte rounds = 0;
  do
  :: rounds < 2 ->
     rounds++;
     atomic { if :: !foreign_cached -> foreign_pages = foreign_generation :: else fi }
#ifdef NO_I9
     foreign_cached = true; /* subscribe() vouches for what we do not own */
#endif
     assert(foreign_pages == foreign_generation);
     if :: rounds == 1 -> foreign_generation++ /* munmap and mmap: nobody tells us */ :: else fi
  :: else -> break
  od
}

/* ---- exit ---- */

proctype Exit() {
  exit_begun = true;
#ifndef ITEM4
  !purge_under_way;
#endif
  fabric_gone = true
}

/* ---- a registrar coarser than a page: its unit is the live block's page and a free one's ---- */

bool unit_word[2]; /* true: being purged */
bool is_coarse_open;
proctype CoarsePurger() {
  bool is_refused = false;
#ifndef ITEM6
  is_refused = true; /* not whole units: is_too_fine_for() */
#endif
  if
  :: !is_refused -> unit_word[1] = true; unit_word[1] = false
  :: else
  fi
}
proctype CoarseGet() {
  bool is_refused;
  atomic { is_refused = unit_word[0] || unit_word[1] }
  /* A get of a live block is never refused for a purge beside it. */
  assert(!is_refused)
}

init {
  atomic {
#ifdef WITH_USERS
    run User(0);
    run User(DOMAINS - 1);
#endif
#ifdef WITH_ONE_USER
    run User(0);
#endif
#ifdef WITH_NEIGHBOUR
    run Neighbour(0);
#endif
#ifdef WITH_EVICTOR
    run Evictor(0);
#endif
#ifdef WITH_PURGER
    run Purger();
#endif
#ifdef WITH_OWNER
    run Owner();
#endif
#ifdef WITH_CLOSER
    run Closer(0);
#endif
#ifdef WITH_QUIESCER
    run Quiescer();
#endif
#ifdef WITH_FABRIC
    run Fabric();
#endif
#ifdef WITH_FOREIGN
    run ForeignUser();
#endif
#ifdef WITH_EXIT
    run Exit();
#endif
#ifdef WITH_COARSE
    run CoarsePurger();
    run CoarseGet();
#endif
  }
}
