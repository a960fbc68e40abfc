/* All of dmadev is called experimental in 22.11. */
#define ALLOW_EXPERIMENTAL_API

#include "dma.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include <rte_dev.h>
#include <rte_dmadev.h>

/* As src/dma.rs has them. */
static_assert(sizeof(struct trunkline_dma_info) == 6, "an info as Rust has it");
static_assert(offsetof(struct trunkline_dma_info, copies) == 3, "an info as Rust has it");

/* The only channel of a device. */
#define CHANNEL 0
/* Places of its ring: a power of two, of which one stays empty. */
#define PLACES (TRUNKLINE_DMA_DEPTH + 1)

int trunkline_dma_add(const char *devargs)
{
	return rte_dev_probe(devargs);
}

int trunkline_dma_find(const char *name)
{
	return rte_dma_get_dev_id_by_name(name);
}

int trunkline_dma_info(int16_t device, struct trunkline_dma_info *info)
{
	struct rte_dma_info found = {0};
	uint64_t needed = RTE_DMA_CAPA_MEM_TO_MEM | RTE_DMA_CAPA_OPS_COPY;
	int code = rte_dma_info_get(device, &found);

	if (code != 0)
		return code;
	*info = (struct trunkline_dma_info){
		.depth = found.max_desc < PLACES ? 0 : TRUNKLINE_DMA_DEPTH,
		.takes_any_address = (found.dev_capa & RTE_DMA_CAPA_SVA) != 0,
		.copies = (found.dev_capa & needed) == needed,
		.tells_errors = (found.dev_capa & RTE_DMA_CAPA_HANDLES_ERRORS) != 0,
	};
	return 0;
}

int trunkline_dma_start(int16_t device)
{
	struct rte_dma_conf conf = { .nb_vchans = 1 };
	struct rte_dma_vchan_conf channel = {
		.direction = RTE_DMA_DIR_MEM_TO_MEM,
		.nb_desc = PLACES,
	};
	int code = rte_dma_configure(device, &conf);

	if (code != 0)
		return code;
	code = rte_dma_vchan_setup(device, CHANNEL, &channel);
	if (code != 0)
		return code;
	return rte_dma_start(device);
}

int trunkline_dma_close(int16_t device, const char *added)
{
	int code = rte_dma_stop(device);

	if (code != 0)
		return code;
	/* A virtual device closes itself when it is removed. */
	return added != NULL ? rte_eal_hotplug_remove("vdev", added) : rte_dma_close(device);
}

int trunkline_dma_copy(int16_t device, const void *from, void *to, uint32_t length)
{
	return rte_dma_copy(device, CHANNEL, (rte_iova_t)(uintptr_t)from,
			    (rte_iova_t)(uintptr_t)to, length, 0);
}

int trunkline_dma_kick(int16_t device)
{
	return rte_dma_submit(device, CHANNEL);
}

/* All that a device may have is asked for at once, so that dma_idxd never has to tell of a batch in
 * parts. */
uint16_t trunkline_dma_poll(int16_t device, uint8_t *failed)
{
	enum rte_dma_status_code status[TRUNKLINE_DMA_DEPTH];
	uint16_t count = rte_dma_completed_status(device, CHANNEL, TRUNKLINE_DMA_DEPTH, NULL,
						  status);

	for (uint16_t at = 0; at < count; at++)
		failed[at] = status[at] != RTE_DMA_STATUS_SUCCESSFUL;
	return count;
}
