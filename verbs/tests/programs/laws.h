/* What the files of this program share. Each law that does not hold is said, with its place, and ends
   the program. */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAW(holds)                                                                 \
	do {                                                                       \
		if (!(holds)) {                                                    \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__,        \
				__LINE__, #holds, errno);                          \
			exit(1);                                                   \
		}                                                                  \
	} while (0)

enum { SIZE = 4096, PATIENCE_MS = 10000 };

/* What `vendor_err` says of requests that end with IBV_WC_RETRY_EXC_ERR (docs/errors.md). */
enum { SILENT = 0, NO_QP = 1, QP_GONE = 4 };

extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_comp_channel *channel;
extern struct ibv_cq_ex *cq_ex;
extern struct ibv_cq *cq;
/* They are connected to each other. */
extern struct ibv_qp *left, *right;
/* The whole of `memory`. */
extern struct ibv_mr *mr;
extern char *memory;
extern union ibv_gid gid;

/* Whether a descriptor is readable, now or within some time. */
int is_readable(int fd, int wait_ms);
/* The next completion of `cq`. */
struct ibv_wc completion(void);
/* Posts a receive to the right QP. */
void receive(uint64_t wr_id);

/* A QP whose completions are on that CQ. */
struct ibv_qp *make_qp(struct ibv_cq *of);
/* Connects a QP to its peer. */
void connect_to(struct ibv_qp *qp, struct ibv_qp *peer);

/* The laws. */
void lists_of_requests(void);
void requests_put_together(void);
void groups_of_requests(void);
void refused_objects(void);
void windows(void);
void datagrams(void);
void events_of_cqs(void);
void channels(void);
void timeouts(void);
void threads_at_once(void);
void link_events(void);
/* It waits for the end of the service. */
void end_of_the_service(void);
void before_the_end(void);
/* It destroys all there is. */
void after_the_end(void);
void shared_receives(void);
/* It destroys the right QP. */
void errors(void);
