/* What Rust calls of DPDK. Much of DPDK is inline functions and bit fields that only a C compiler
 * can read; calls here take whole bursts, so that one call more does not count.
 *
 * What can fail gives 0 or more, or a negative errno. */

#ifndef TRUNKLINE_DPDK_SHIM_H
#define TRUNKLINE_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct rte_mempool;
struct rte_ring;

/* Most frames of a call. */
#define TRUNKLINE_BURST 64
/* Most bytes of the name of a driver, its zero included. */
#define TRUNKLINE_NAME 32

/* A frame in memory of DPDK. */
struct trunkline_frame {
	/* Its mbuf. */
	void *mbuf;
	/* Its first byte. */
	uint8_t *data;
	/* Bytes that it has. */
	uint32_t length;
	/* Of one to send: bytes that there is room for. Of one that came: whether its end is
	 * missing from `data`. */
	uint32_t room_or_cut;
};

/* What there is to know of a port. */
struct trunkline_info {
	/* Hash functions that spread what comes over queues. */
	uint64_t rss;
	/* The interface of the kernel that it is on; 0: none. */
	uint32_t if_index;
	/* Bytes of the longest frame that it can be configured for. */
	uint32_t max_frame;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t mtu;
	uint8_t mac[6];
	char driver[TRUNKLINE_NAME];
};

/* How its link is. */
struct trunkline_link {
	/* In Mb/s; 0: not known. */
	uint32_t rate;
	uint32_t is_up;
};

const char *trunkline_version(void);
const char *trunkline_error(int code);
int trunkline_keep_log(void);
size_t trunkline_log(char *to, size_t room);

int trunkline_init(int argc, char **argv);
int trunkline_cleanup(void);
const char *trunkline_runtime_dir(void);
int trunkline_thread_register(void);
void trunkline_thread_unregister(void);

int trunkline_add(const char *devargs, const char *name, uint16_t *port);
int trunkline_join_rings(const char *name, struct rte_ring **rx, struct rte_ring **tx,
			 unsigned int count, uint16_t *port);
int trunkline_info(uint16_t port, struct trunkline_info *info);
int trunkline_configure(uint16_t port, uint16_t queues, uint32_t mtu);
int trunkline_add_queue(uint16_t port, uint16_t queue, uint16_t frames, struct rte_mempool *pool);
int trunkline_start(uint16_t port);
int trunkline_restart(uint16_t port);
int trunkline_remove(uint16_t port);
int trunkline_set_mac(uint16_t port, const uint8_t mac[6]);
int trunkline_hear_multicast(uint16_t port);
int trunkline_link(uint16_t port, struct trunkline_link *link);
int trunkline_missed(uint16_t port, uint64_t *missed);

struct rte_mempool *trunkline_pool(const char *name, unsigned int frames, uint16_t room,
				   int *error);
void trunkline_pool_free(struct rte_mempool *pool);
unsigned int trunkline_pool_free_frames(const struct rte_mempool *pool);
struct rte_ring *trunkline_ring(const char *name, unsigned int frames, int *error);
void trunkline_ring_free(struct rte_ring *ring);

uint16_t trunkline_receive(uint16_t port, uint16_t queue, struct trunkline_frame *frames,
			   uint16_t count);
int trunkline_allocate(struct rte_mempool *pool, struct trunkline_frame *frames, uint16_t count);
uint16_t trunkline_send(uint16_t port, uint16_t queue, const struct trunkline_frame *frames,
			uint16_t count);
void trunkline_free(const struct trunkline_frame *frames, uint16_t count);

#endif
